// Methods whose choice does not look at the query: eviction heads by block (NOSA's Table 7) and Locret's retaining
// heads, against plain references in float64 written from their definitions (methods 3.5, 9.3).
#include "tests/core/method_run.h"

#include "base/error.h"
#include "core/select/retaining_heads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::MethodRun;
constexpr int kDim = MethodRun::kDim, kGroup = MethodRun::kGroup, kKvHeads = MethodRun::kKvHeads;

double dot(const float* a, const float* b) { return std::inner_product(a, a + kDim, b, 0.0); }

/// Weighted mean of the values of `over`; weight(logit, eviction score).
template <class Weight>
std::vector<double> weighted(const MethodRun& run, int token, int head, const std::vector<std::int32_t>& over,
                             Weight weight) {
    std::vector<double> result(kDim, 0.0);
    double total = 0;
    for (const std::int32_t t : over) {
        const int g = head / kGroup;
        const double w = weight(run.scale() * dot(run.q(token, head), run.k(t, g)), double(run.score(t, g)));
        total += w;
        for (int c = 0; c < kDim; ++c) result[std::size_t(c)] += w * double(run.v(t, g)[c]);
    }
    for (double& x : result) x /= total;
    return result;
}

// --- DMA, S-DMA and ED-DMA by block (3.5, 9.2)

struct Variant {
    const char* name;
    double (*importance)(double s); // pooled to blocks
    double (*weight)(double logit, double s);
};

class EvictionHead : public ::testing::TestWithParam<Variant> {};

TEST_P(EvictionHead, SelectsAndWeighsAsItsRowOfTheTable) {
    constexpr int kSize = 16, kKernel = 8, kStride = 4, kSink = 1, kWindow = 2, kTotal = 8;
    const Variant& variant = GetParam();
    const MethodRun run("dma",
                        {{"bias", variant.name},
                         {"block_size", std::to_string(kSize)},
                         {"kernel_size", std::to_string(kKernel)},
                         {"kernel_stride", std::to_string(kStride)},
                         {"sink_blocks", std::to_string(kSink)},
                         {"window_blocks", std::to_string(kWindow)},
                         {"window_adds_current", "false"},
                         {"total_blocks", std::to_string(kTotal)}},
                        {310, 50, 21, true, false, true});
    for (std::size_t step = 0; step < run.steps().size(); ++step)
        for (int g = 0; g < kKvHeads; ++g) {
            const int position = run.position(step), current = position / kSize;
            std::vector<double> pooled(std::size_t(current) + 1, -std::numeric_limits<double>::infinity());
            for (int first = 0; first + kKernel <= position + 1; first += kStride) {
                double mean = 0;
                for (int t = first; t < first + kKernel; ++t)
                    mean += variant.importance(double(run.score(t, g))) / kKernel;
                for (int block = first / kSize; block <= (first + kKernel - 1) / kSize; ++block)
                    pooled[std::size_t(block)] = std::max(pooled[std::size_t(block)], mean);
            }
            std::vector<std::int32_t> middle, expected{0};
            for (int block = kSink; block <= current - kWindow; ++block) middle.push_back(block);
            std::stable_sort(middle.begin(), middle.end(),
                             [&](auto a, auto b) { return pooled[std::size_t(a)] > pooled[std::size_t(b)]; });
            expected.insert(expected.end(), middle.begin(), middle.begin() + kTotal - kSink - kWindow);
            for (int block = current - kWindow + 1; block <= current; ++block) expected.push_back(block);
            std::sort(expected.begin(), expected.end());
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            ASSERT_EQ(head.units, expected) << "step " << step << " head " << g;
            std::vector<std::int32_t> tokens;
            for (const std::int32_t block : expected)
                for (int t = block * kSize; t < std::min(position + 1, (block + 1) * kSize); ++t) tokens.push_back(t);
            for (int h = 0; h < kGroup; ++h) {
                const auto reference = weighted(run, position, g * kGroup + h, tokens, variant.weight);
                for (int c = 0; c < kDim; ++c) // float32 sums of about 100 products
                    ASSERT_NEAR(head.out[std::size_t(h * kDim + c)], reference[std::size_t(c)], 5e-6);
            }
        }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, EvictionHead,
    ::testing::Values(Variant{"ed-dma", [](double s) { return s; },
                              [](double logit, double s) { return std::exp(s) * std::exp(logit); }},
                      Variant{"dma", [](double s) { return std::exp(s); }, // b = exp(s) multiplies
                              [](double logit, double s) { return std::exp(s) * std::exp(logit); }},
                      Variant{"s-dma", [](double s) { return s; },
                              [](double logit, double) { return std::exp(logit); }}),
    [](const auto& parameter) {
        std::string name = parameter.param.name;
        std::replace(name.begin(), name.end(), '-', '_');
        return name;
    });

// --- Locret (9.3)

/// Scores of one token by the perceptron, in float64: fc2 silu(fc1 [q, k, v]).
std::vector<double> retainingScores(const MethodRun& run, const select::RetainingHeads& heads, int token) {
    std::vector<double> x, hidden;
    for (int h = 0; h < MethodRun::kQueryHeads; ++h)
        x.insert(x.end(), run.plainQ(token, h), run.plainQ(token, h) + kDim);
    for (int g = 0; g < kKvHeads; ++g) x.insert(x.end(), run.plainK(token, g), run.plainK(token, g) + kDim);
    for (int g = 0; g < kKvHeads; ++g) x.insert(x.end(), run.v(token, g), run.v(token, g) + kDim);
    const auto product = [](std::span<const float> matrix, const std::vector<double>& vector, std::size_t row) {
        double sum = 0;
        for (std::size_t i = 0; i < vector.size(); ++i) sum += double(matrix[row * vector.size() + i]) * vector[i];
        return sum;
    };
    for (std::size_t row = 0; row < std::size_t(heads.width); ++row) {
        const double z = product(heads.inOf(LayerId{0}), x, row);
        hidden.push_back(z / (1 + std::exp(-z)));
    }
    return {product(heads.outOf(LayerId{0}), hidden, 0), product(heads.outOf(LayerId{0}), hidden, 1)};
}

struct Want {
    int budget, chunk, stabilizers, local;
};

void checkLocret(const Want& want, const MethodRun::Shape& shape) {
    static const auto model = Model::load(kDefaultModel);
    const auto heads = select::findRetainingHeads(*model);
    ASSERT_TRUE(heads.has_value());
    const MethodRun run("locret",
                        {{"block_size", "16"},
                         {"budget_tokens", std::to_string(want.budget)},
                         {"prefill_chunk", std::to_string(want.chunk)},
                         {"stabilizers", std::to_string(want.stabilizers)},
                         {"local_len", std::to_string(want.local)}},
                        shape);
    std::vector<std::vector<double>> scores; // [token][kvHead]
    for (int token = 0; token < run.promptTokens() + shape.steps; ++token)
        scores.push_back(retainingScores(run, *heads, token));
    for (int g = 0; g < kKvHeads; ++g) {
        std::vector<std::int32_t> kept;
        const auto evict = [&](int recent) {
            if (int(kept.size()) <= want.budget) return;
            const auto others = kept.end() - recent;
            std::stable_sort(kept.begin(), others, [&](auto a, auto b) {
                return scores[std::size_t(a)][std::size_t(g)] > scores[std::size_t(b)][std::size_t(g)];
            });
            kept.erase(kept.begin() + want.budget - recent, others);
            std::sort(kept.begin(), kept.end());
        };
        for (int first = 0; first < run.promptTokens(); first += want.chunk) {
            const int end = std::min(run.promptTokens(), first + want.chunk);
            for (int token = first; token < end; ++token) {
                auto seen = kept;
                for (int own = first; own <= token; ++own) seen.push_back(own);
                if (token % 7 != 0 && token + 1 != end) continue; // every seventh, and each chunk's last
                for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
                    const auto reference = run.attention(token, h, seen);
                    for (int c = 0; c < kDim; ++c)
                        ASSERT_NEAR(run.out(token, h)[c], reference[std::size_t(c)], 2e-6) << "prompt token " << token;
                }
            }
            for (int token = first; token < end; ++token) kept.push_back(token);
            evict(want.stabilizers);
        }
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            kept.push_back(run.position(step));
            evict(want.local);
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            ASSERT_EQ(head.units, kept) << "step " << step << " head " << g;
            EXPECT_LT(run.outputError(step, g, kept), 2e-6);
            EXPECT_EQ(head.record.misses, 0);
            for (std::size_t i = 0; i < kept.size(); ++i)
                EXPECT_NEAR(head.scores[i], scores[std::size_t(kept[i])][std::size_t(g)], 1e-4);
        }
    }
    for (const auto& step : run.steps()) EXPECT_EQ(step.layer.h2dBytes, 0);
}

TEST(Locret, KeepsTheBestScoredOfEveryChunkAndForgetsTheRest) {
    checkLocret({60, 90, 20, 12}, {330, 60, 31}); // chunks that end inside blocks and inside the engine's chunks
}
TEST(Locret, AChunkLongerThanTheBudgetAndNoStabilizers) { checkLocret({25, 128, 0, 25}, {256, 40, 32}); }
TEST(Locret, WithRoomForEverythingIsDense) { checkLocret({1000, 64, 100, 10}, {200, 30, 33}); }

TEST(Locret, WhatCalibrationWritesIsReadBack) {
    static const auto model = Model::load(kDefaultModel);
    const auto heads = select::findRetainingHeads(*model);
    ASSERT_TRUE(heads.has_value());
    const auto path = std::filesystem::temp_directory_path() / ("kvscope-locret-" + std::to_string(getpid()));
    select::writeRetainingHeads(path.string(), *heads);
    const auto back = select::readRetainingHeads(path.string(), model->config());
    EXPECT_EQ(back.width, heads->width);
    EXPECT_EQ(back.in, heads->in);
    EXPECT_EQ(back.out, heads->out);
    ModelConfig other = model->config();
    other.kvHeads = 1;
    try {
        select::readRetainingHeads(path.string(), other);
        FAIL() << "heads of another model were taken";
    } catch (const Error& error) {
        EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr("fc1"));
    }
    std::filesystem::remove(path);
}

TEST(H2O, ReadsThePromptWithFullAttention) {
    const MethodRun run("h2o", {{"heavy_tokens", "20"}, {"recent_tokens", "10"}}, {260, 3, 34});
    for (int token = 0; token < run.promptTokens(); token += 13) {
        std::vector<std::int32_t> seen(std::size_t(token) + 1);
        std::iota(seen.begin(), seen.end(), 0);
        for (int h = 0; h < MethodRun::kQueryHeads; ++h) {
            const auto reference = run.attention(token, h, seen);
            for (int c = 0; c < kDim; ++c) ASSERT_NEAR(run.out(token, h)[c], reference[std::size_t(c)], 2e-6) << token;
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
