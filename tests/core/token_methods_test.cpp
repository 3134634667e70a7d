// Methods that choose tokens, against plain references written from their papers (methods 9.6, 7; H2O; SnapKV).
#include "tests/core/method_run.h"

#include "base/error.h"
#include "core/select/channel_importance.h"
#include "core/select/label_cache.h"
#include "core/select/range_products.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::expectBest;
using test::MethodRun;
using test::upTo;
constexpr int kDim = MethodRun::kDim, kGroup = MethodRun::kGroup;

double dot(const float* a, const float* b) { return std::inner_product(a, a + kDim, b, 0.0); }

/// Attention probabilities of a query head over `tokens`.
std::vector<double> probabilities(const MethodRun& run, int token, int head, const std::vector<std::int32_t>& tokens) {
    std::vector<double> logits;
    for (const std::int32_t t : tokens)
        logits.push_back(run.scale() * dot(run.q(token, head), run.k(t, head / kGroup)));
    return test::softmax(logits);
}

std::vector<std::size_t> ranked(const std::vector<double>& importance, std::size_t count) {
    std::vector<std::size_t> order(importance.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return importance[a] > importance[b]; });
    order.resize(count);
    return order;
}

/// The asymmetric 4-bit rule of the public code, in float64.
std::vector<double> fourBits(std::vector<double> x) {
    const double low = *std::min_element(x.begin(), x.end()), high = *std::max_element(x.begin(), x.end());
    const double scale = 15 / (high == low ? 1.0 : high - low);
    for (double& value : x) value = std::clamp(std::nearbyint((value - low) * scale), 0.0, 15.0) / scale + low;
    return x;
}

std::vector<double> cut(const float* x, const std::vector<std::size_t>& channels) {
    std::vector<double> result;
    for (const std::size_t c : channels) result.push_back(double(x[c]));
    return result;
}

double product(const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// mean over the group of softmax over `tokens` of scale * label(q) . label(k).
std::vector<double> labelScores(const MethodRun& run, int position, int g, const std::vector<std::size_t>& channels,
                                double scale, bool roundQuery, const std::vector<std::int32_t>& tokens) {
    std::vector<double> scores(tokens.size(), 0.0);
    for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
        auto query = cut(run.q(position, h), channels);
        if (roundQuery) query = fourBits(query);
        std::vector<double> logits;
        for (const std::int32_t t : tokens)
            logits.push_back(scale * product(query, fourBits(cut(run.k(t, g), channels))));
        logits = test::softmax(logits);
        for (std::size_t i = 0; i < tokens.size(); ++i) scores[i] += logits[i] / kGroup;
    }
    return scores;
}

// --- Double Sparsity (9.6)

TEST(DoubleSparsity, ChoosesAndAttendsTheTokensOfItsPaper) {
    const MethodRun run("double-sparsity", {{"heavy_tokens", "40"}, {"group_factor", "4"}}, {310, 70, 5});
    for (int g = 0; g < MethodRun::kKvHeads; ++g) {
        std::vector<double> importance(kDim, 0.0); // mean of |q * k| of the same prompt token
        for (int t = 0; t < run.promptTokens(); ++t)
            for (int h = g * kGroup; h < (g + 1) * kGroup; ++h)
                for (int c = 0; c < kDim; ++c)
                    importance[std::size_t(c)] += std::abs(double(run.q(t, h)[c]) * double(run.k(t, g)[c]));
        const auto channels = ranked(importance, 16);
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            const int position = run.position(step);
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            const auto tokens = upTo(position + 1);
            expectBest(head.units, tokens, labelScores(run, position, g, channels, 1 / 4.0, true, tokens), 40);
            EXPECT_LT(run.outputError(step, g, head.units), 2e-6);
            for (std::size_t i = 0; i < head.units.size(); ++i) {
                EXPECT_EQ(head.hit[i], head.units[i] == position ? 1 : 0) << "all but the newest come from the host";
                EXPECT_EQ(head.origins[i], Origin::TokenLevel);
            }
        }
    }
    for (const auto& step : run.steps()) {
        EXPECT_EQ(step.layer.h2dBytes, std::int64_t(step.layer.misses) * kDim * 2 * 4);
        EXPECT_EQ(step.layer.d2hBytes, MethodRun::kKvHeads * kDim * 2 * 4);
    }
}

TEST(DoubleSparsity, WithAllTokensIsDense) {
    const MethodRun run("double-sparsity", {{"heavy_tokens", "1000"}, {"group_factor", "64"}}, {200, 30, 6});
    for (std::size_t step = 0; step < run.steps().size(); ++step)
        for (int g = 0; g < MethodRun::kKvHeads; ++g)
            EXPECT_LT(run.outputError(step, g, upTo(run.position(step) + 1)), 2e-6);
}

TEST(DoubleSparsity, LabelsFollowTheRuleByHand) {
    select::LabelCache cache(4, 4, 3);
    const float key[] = {-1.f, 9.f, 2.f, 0.5f, 0.12f};
    const std::int32_t channels[] = {0, 2, 3, 4}; // range -1 .. 2: 5 codes per unit
    cache.append(key, channels);
    float label[4];
    cache.read(0, label);
    // Codes 0, 15, 8 (7.5 to even) and 6 (5.6).
    EXPECT_THAT(label, testing::Pointwise(testing::FloatNear(1e-6f), {-1.f, 2.f, 0.6f, 0.2f}));
    const float equal[] = {3.f, 0.f, 3.f, 3.f, 3.f};
    cache.append(equal, channels);
    cache.read(1, label);
    EXPECT_THAT(label, testing::Each(3.f)) << "a range of 0 counts as 1";
    EXPECT_EQ(cache.bytesPerToken(), 2u + 8u);
}

TEST(DoubleSparsity, EqualChannelsAreTakenFromTheLowest) {
    const float importance[] = {1, 3, 3, 2, 3};
    EXPECT_EQ(select::bestChannels(importance, 3), (std::vector<std::int32_t>{1, 2, 4}));
}

TEST(DoubleSparsity, TheCalibrationFileComesBackAsItWasWritten) {
    ModelConfig config;
    config.layers = 2, config.kvHeads = 2, config.headDim = 4;
    select::ChannelImportance written{2, 2, 4, std::vector<float>(16), std::vector<float>(16)};
    std::iota(written.mean.begin(), written.mean.end(), 0.5f);
    std::iota(written.max.begin(), written.max.end(), 100.f);
    const std::string path = testing::TempDir() + "kvscope_double_sparsity.safetensors";
    select::writeChannelImportance(path, written);
    const auto read = select::readChannelImportance(path, config);
    EXPECT_EQ(read.mean, written.mean);
    EXPECT_EQ(read.max, written.max);
    EXPECT_EQ(read.of(read.max, LayerId{1}, KvHeadId{1})[2], 114.f);
    config.headDim = 8;
    try {
        select::readChannelImportance(path, config);
        FAIL() << "another model's file was read";
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), testing::HasSubstr("model.layers.0.self_attn.qk_mean"));
    }
    std::filesystem::remove(path);
}

TEST(DoubleSparsity, AFileBesideTheModelDecidesTheChannels) {
    namespace fs = std::filesystem;
    const fs::path folder = fs::path(testing::TempDir()) / "kvscope_calibrated_model";
    fs::remove_all(folder);
    fs::copy(fs::path(test::source("tests/golden/hf_llama")), folder, fs::copy_options::recursive);
    const std::string file = (folder / select::kChannelImportanceFile).string();
    const auto model = Model::load(folder.string());
    const ModelConfig& config = model->config();
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < 150; ++i) prompt.push_back((i * 37 + 11) % config.vocab);
    SessionOptions options;
    options.method = "double-sparsity";
    options.settings = {{"heavy_tokens", "20"}, {"group_factor", "4"}};
    options.maxNewTokens = 3;
    options.stopAtEos = false;
    const auto chosen = [&] {
        CollectingSink sink;
        DecodeSession session(model, {prompt}, options, sink);
        session.prefill();
        while (session.step()) {
        }
        return sink.steps.back().blocks;
    };
    select::ChannelImportance importance{config.layers, config.kvHeads, config.headDim, {}, {}};
    const auto rank = [&](double first, double step) {
        importance.mean.clear();
        for (int i = 0; i < config.layers * config.kvHeads * config.headDim; ++i)
            importance.mean.push_back(float(first + step * (i % config.headDim)));
        importance.max = importance.mean;
        select::writeChannelImportance(file, importance);
        return chosen();
    };
    const auto rising = rank(1, 1), alsoRising = rank(5, 0.5), falling = rank(1000, -1);
    EXPECT_EQ(rising, alsoRising) << "only the order counts";
    EXPECT_NE(rising, falling);
    std::ofstream(file) << "not a checkpoint";
    EXPECT_THROW(chosen(), Error);
    fs::remove_all(folder);
}

// --- AsyncTLS (7)

struct TlsReference {
    int blocks, tokens, channels, sink, window;
};

/// M_t for the query at `position`: sink, window, the newest, and the best of the rest.
void expectCandidates(const MethodRun& run, const TlsReference& want, int position, int g,
                      const std::vector<std::int32_t>& got) {
    const int size = run.spec().blockSize, current = position / size;
    std::vector<std::int32_t> free, chosen;
    std::vector<double> scores;
    for (int b = 0; b <= current; ++b) {
        const bool forced = b < want.sink || b >= current - want.window;
        const bool in = std::count(got.begin(), got.end(), b) > 0;
        if (forced) {
            EXPECT_TRUE(in) << "block " << b;
            continue;
        }
        double bound = 0;
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h)
            for (int c = 0; c < kDim; ++c) {
                double low = 1e300, high = -1e300;
                for (int t = b * size; t < (b + 1) * size; ++t) {
                    low = std::min(low, double(run.k(t, g)[c]));
                    high = std::max(high, double(run.k(t, g)[c]));
                }
                bound += std::max(double(run.q(position, h)[c]) * low, double(run.q(position, h)[c]) * high);
            }
        free.push_back(b);
        scores.push_back(bound);
        if (in) chosen.push_back(b);
    }
    expectBest(chosen, free, scores, want.blocks - want.sink - want.window, 1e-3);
}

std::vector<std::int32_t> tokensOf(const std::vector<std::int32_t>& blocks, int size, int position) {
    std::vector<std::int32_t> tokens;
    for (const std::int32_t b : blocks)
        for (int t = b * size; t <= std::min(position, (b + 1) * size - 1); ++t) tokens.push_back(t);
    return tokens;
}

/// The candidates by the paper's definition, float64, ascending.
std::vector<std::int32_t> candidates(const MethodRun& run, const TlsReference& want, int position, int g) {
    const int size = run.spec().blockSize, current = position / size;
    std::vector<double> score(std::size_t(current) + 1, 1e300);
    for (int b = want.sink; b < current - want.window; ++b) {
        score[std::size_t(b)] = 0;
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h)
            for (int c = 0; c < kDim; ++c) {
                double best = -1e300;
                for (int t = b * size; t < (b + 1) * size; ++t)
                    best = std::max(best, double(run.q(position, h)[c]) * double(run.k(t, g)[c]));
                score[std::size_t(b)] += best;
            }
    }
    auto order = ranked(score, std::min(score.size(), std::size_t(want.blocks + 1)));
    std::vector<std::int32_t> result(order.begin(), order.end());
    std::sort(result.begin(), result.end());
    return result;
}

std::vector<std::size_t> tlsChannels(const MethodRun& run, int g, std::size_t count) {
    std::vector<double> importance(kDim, 0.0);
    for (std::size_t c = 0; c < kDim; ++c) {
        double largestK = 0;
        for (int t = 0; t < run.promptTokens(); ++t) largestK = std::max(largestK, std::abs(double(run.k(t, g)[c])));
        for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
            double largestQ = 0;
            for (int t = 0; t < run.promptTokens(); ++t)
                largestQ = std::max(largestQ, std::abs(double(run.q(t, h)[c])));
            importance[c] += largestQ * largestK / kGroup;
        }
    }
    return ranked(importance, count);
}

void expectTls(const MethodRun& run, const TlsReference& want, bool lag) {
    const int size = run.spec().blockSize;
    for (int g = 0; g < MethodRun::kKvHeads; ++g) {
        const auto channels = tlsChannels(run, g, std::size_t(want.channels));
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            SCOPED_TRACE(testing::Message() << "step " << step << " head " << g);
            const int position = run.position(step), current = position / size;
            const auto now = candidates(run, want, position, g);
            auto among = lag ? candidates(run, want, position - 1, g) : now;
            if (among.back() != current) among.push_back(current); // a block began
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            const auto tokens = tokensOf(among, size, position);
            const auto scores = labelScores(run, position, g, channels, run.scale(), false, tokens);
            // The chosen tokens are not recorded one by one: the reference's own choice must give blocks and output.
            std::vector<std::size_t> order = ranked(scores, std::min(scores.size(), std::size_t(want.tokens)));
            std::vector<std::int32_t> chosen;
            for (const std::size_t i : order) chosen.push_back(tokens[i]);
            std::sort(chosen.begin(), chosen.end());
            EXPECT_LT(run.outputError(step, g, chosen), 2e-6);
            std::set<std::int32_t> blocks;
            for (const std::int32_t t : chosen) blocks.insert(t / size);
            EXPECT_EQ(head.units, std::vector<std::int32_t>(blocks.begin(), blocks.end()));
            int stale = 0;
            for (const std::int32_t b : now) stale += std::count(among.begin(), among.end(), b) == 0;
            EXPECT_EQ(head.record.stale, lag ? stale : -1);
            expectCandidates(run, want, position, g, now);
        }
    }
}

test::MethodSettings tlsSettings(const TlsReference& want, const char* lag) {
    return {{"block_size", "16"},
            {"k_b", std::to_string(want.blocks)},
            {"k_t", std::to_string(want.tokens)},
            {"d_c", std::to_string(want.channels)},
            {"sink_blocks", std::to_string(want.sink)},
            {"window_blocks", std::to_string(want.window)},
            {"lag", lag}};
}

TEST(AsyncTls, WithoutLagIsTwoLevelSelection) {
    for (const TlsReference& want : {TlsReference{6, 30, 16, 0, 0}, TlsReference{8, 50, 32, 1, 2}})
        expectTls(MethodRun("asynctls", tlsSettings(want, "0"), {310, 60, 7}), want, false);
}

TEST(AsyncTls, WithLagChoosesAmongTheBlocksOfTheStepBefore) {
    for (const TlsReference& want : {TlsReference{6, 30, 16, 0, 0}, TlsReference{8, 50, 32, 1, 2}})
        expectTls(MethodRun("asynctls", tlsSettings(want, "1"), {310, 60, 8}), want, true);
}

TEST(AsyncTls, WithEverythingChosenIsDense) {
    for (const char* lag : {"0", "1"}) {
        const MethodRun run("asynctls", tlsSettings({100, 2000, 16, 0, 0}, lag), {300, 40, 9});
        for (std::size_t step = 0; step < run.steps().size(); ++step)
            for (int g = 0; g < MethodRun::kKvHeads; ++g) {
                EXPECT_LT(run.outputError(step, g, upTo(run.position(step) + 1)), 2e-6);
                EXPECT_LE(run.steps()[step].heads[std::size_t(g)].record.stale, 0);
            }
    }
}

/// The device slots of a policy that replaces the block used longest ago, of equals the lower one: written again, to
/// compare with what the engine keeps.
struct Slots {
    std::size_t count;
    std::map<std::int32_t, int> lastUse; // by block
    int admit(const std::vector<std::int32_t>& wanted, int step) {
        int loads = 0;
        for (const std::int32_t block : wanted) {
            if (lastUse.count(block)) continue;
            ++loads;
            if (lastUse.size() == count) {
                auto oldest = lastUse.end();
                for (auto at = lastUse.begin(); at != lastUse.end(); ++at)
                    if (!std::count(wanted.begin(), wanted.end(), at->first) &&
                        (oldest == lastUse.end() || at->second < oldest->second))
                        oldest = at;
                lastUse.erase(oldest);
            }
            lastUse[block] = step;
        }
        for (const std::int32_t block : wanted) lastUse[block] = step;
        return loads;
    }
};

TEST(AsyncTls, MovesOnlyWhatTheCandidatesOfTheNextStepLack) {
    const TlsReference want{6, 30, 16, 0, 0};
    const MethodRun run("asynctls", tlsSettings(want, "1"), {310, 60, 10});
    const int size = run.spec().blockSize;
    std::vector<int> loads(run.steps().size() + 1, 0); // [step], sent on their way by the step before
    for (int g = 0; g < MethodRun::kKvHeads; ++g) {
        Slots slots{8, {}};                                               // six chosen, the newest, and one that begins
        slots.admit(candidates(run, want, run.promptTokens() - 1, g), 0); // the prompt's seed stays where it was
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            const int position = run.position(step);
            auto resident = candidates(run, want, position - 1, g);
            if (position % size == 0) resident.push_back(position / size); // begins on the device
            slots.admit(resident, int(step) + 1);
            loads[step + 1] += slots.admit(candidates(run, want, position, g), int(step) + 1);
        }
    }
    for (std::size_t step = 0; step < run.steps().size(); ++step) {
        EXPECT_EQ(run.steps()[step].layer.h2dBlocks, loads[step]) << step;
        for (int g = 0; g < MethodRun::kKvHeads; ++g)
            EXPECT_EQ(run.steps()[step].heads[std::size_t(g)].record.predicted, step == 0 ? -1 : want.blocks + 1);
    }
    EXPECT_GT(std::accumulate(loads.begin(), loads.end(), 0), 20);
}

TEST(AsyncTls, OffloadingChangesNoOutput) {
    const TlsReference want{6, 30, 16, 1, 1};
    const MethodRun away("asynctls", tlsSettings(want, "1"), {310, 60, 11, true}),
        here("asynctls", tlsSettings(want, "1"), {310, 60, 11, false});
    for (std::size_t step = 0; step < here.steps().size(); ++step)
        for (std::size_t g = 0; g < 2; ++g) EXPECT_EQ(here.steps()[step].heads[g].out, away.steps()[step].heads[g].out);
}

TEST(Quest, ItsBoundAsProductsEqualsItsMaximumForm) {
    std::mt19937 random(12);
    std::normal_distribution<float> normal;
    for (int round = 0; round < 50; ++round) {
        const int dim = 8 * int(1 + random() % 16), group = int(1 + random() % 8), blocks = int(1 + random() % 20);
        std::vector<float> q(std::size_t(group * dim)), ranges(std::size_t(blocks * 2 * dim)),
            halves(std::size_t(2 * dim)), scores(static_cast<std::size_t>(blocks));
        for (float& x : q) x = normal(random);
        for (int b = 0; b < blocks; ++b)
            for (int c = 0; c < dim; ++c) {
                const float x = normal(random), y = normal(random);
                ranges[std::size_t((2 * b) * dim + c)] = std::min(x, y);
                ranges[std::size_t((2 * b + 1) * dim + c)] = std::max(x, y);
            }
        select::rangeProducts(q.data(), group, dim, ranges.data(), halves, scores);
        for (int b = 0; b < blocks; ++b) {
            double expected = 0;
            for (int h = 0; h < group; ++h)
                for (int c = 0; c < dim; ++c) {
                    const double x = double(q[std::size_t(h * dim + c)]);
                    expected += std::max(x * double(ranges[std::size_t(2 * b * dim + c)]),
                                         x * double(ranges[std::size_t((2 * b + 1) * dim + c)]));
                }
            // Sums of up to 1024 products of size 1 in float32.
            EXPECT_NEAR(double(scores[std::size_t(b)]), expected, 1e-6 * group * dim);
        }
    }
}

// --- H2O

TEST(H2O, KeepsRecentTokensAndTheHeaviestOfTheOthers) {
    const int heavy = 25, recent = 12;
    const MethodRun run("h2o", {{"heavy_tokens", "25"}, {"recent_tokens", "12"}, {"block_size", "16"}}, {230, 60, 13});
    for (int g = 0; g < MethodRun::kKvHeads; ++g) {
        std::map<std::int32_t, double> mass; // of the retained tokens
        for (int t = 0; t < run.promptTokens(); ++t)
            for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
                const auto p = probabilities(run, t, h, upTo(t + 1));
                for (int j = 0; j <= t; ++j) mass[j] += p[std::size_t(j)];
            }
        const auto evict = [&] {
            while (int(mass.size()) > heavy + recent) {
                auto least = mass.begin();
                auto end = mass.end();
                std::advance(end, -recent);
                for (auto at = mass.begin(); at != end; ++at)
                    if (at->second <= least->second) least = at;
                mass.erase(least);
            }
        };
        evict();
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            const int position = run.position(step);
            mass[position] = 0;
            std::vector<std::int32_t> kept;
            for (const auto& [token, received] : mass) kept.push_back(token);
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            ASSERT_EQ(head.units, kept) << "step " << step;
            EXPECT_LT(run.outputError(step, g, kept), 2e-6);
            EXPECT_EQ(head.record.misses, 0);
            for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
                const auto p = probabilities(run, position, h, kept);
                for (std::size_t i = 0; i < kept.size(); ++i) mass[kept[i]] += p[i];
            }
            evict();
        }
    }
    for (const auto& step : run.steps()) EXPECT_EQ(step.layer.h2dBytes + step.layer.d2hBytes, 0);
}

TEST(H2O, WhatIsEvictedNeverComesBack) {
    const MethodRun run("h2o", {{"heavy_ratio", "0.05"}, {"recent_ratio", "0.1"}}, {400, 50, 14});
    for (std::size_t g = 0; g < 2; ++g)
        for (std::size_t step = 0; step < run.steps().size(); ++step) {
            const auto& now = run.steps()[step].heads[g].units;
            EXPECT_EQ(now.size(), 20u + 40u + 1u);
            if (step == 0) continue;
            const auto& before = run.steps()[step - 1].heads[g].units;
            for (const std::int32_t token : now)
                EXPECT_TRUE(token == run.position(step) || std::count(before.begin(), before.end(), token) == 1);
        }
}

// --- SnapKV

TEST(SnapKv, TheWindowVotesOnceForEachHead) {
    for (const char* pooling : {"max", "avg"}) {
        const int capacity = 90, window = 32, kernel = 7;
        const MethodRun run("snapkv", {{"capacity_tokens", "90"}, {"pooling", pooling}}, {330, 40, 15});
        const int before = run.promptTokens() - window;
        for (int g = 0; g < MethodRun::kKvHeads; ++g) {
            std::vector<double> votes(std::size_t(before), 0.0), pooled(std::size_t(before), 0.0);
            for (int t = before; t < run.promptTokens(); ++t)
                for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
                    const auto p = probabilities(run, t, h, upTo(t + 1));
                    for (int j = 0; j < before; ++j) votes[std::size_t(j)] += p[std::size_t(j)];
                }
            for (int i = 0; i < before; ++i)
                for (int j = i - kernel / 2; j <= i + kernel / 2; ++j) {
                    const double vote = j >= 0 && j < before ? votes[std::size_t(j)] : 0.0; // votes are positive
                    double& to = pooled[std::size_t(i)];
                    to = pooling == std::string("max") ? std::max(to, vote) : to + vote / kernel;
                }
            for (std::size_t step = 0; step < run.steps().size(); ++step) {
                const auto& head = run.steps()[step].heads[std::size_t(g)];
                std::vector<std::int32_t> prompt, rest;
                for (const std::int32_t t : head.units) (t < before ? prompt : rest).push_back(t);
                // Max pooling gives neighbours the same vote: of equals the older one, which rounding does not touch.
                const auto best = ranked(pooled, std::size_t(capacity - window));
                std::vector<std::int32_t> expected(best.begin(), best.end());
                std::sort(expected.begin(), expected.end());
                EXPECT_EQ(prompt, expected);
                auto all = upTo(run.position(step) + 1);
                EXPECT_EQ(rest, std::vector<std::int32_t>(all.begin() + before, all.end()));
                EXPECT_LT(run.outputError(step, g, head.units), 2e-6);
                EXPECT_EQ(head.record.misses, 0);
            }
        }
    }
}

TEST(SnapKv, AShortPromptIsKeptWhole) {
    for (const int tokens : {1, 20, 33, 90}) {
        const MethodRun run("snapkv", {{"capacity_tokens", "90"}}, {tokens, 5, 16});
        for (std::size_t step = 0; step < run.steps().size(); ++step)
            EXPECT_EQ(run.steps()[step].heads[0].units, upTo(run.position(step) + 1));
    }
}

// --- DMA by token (9.2)

TEST(DmaToken, KeepsTheTokensOfTheHighestScoreAndTheTwoFormsAgreeInFloat32) {
    const MethodRun run("dma-token", {{"budget_tokens", "50"}, {"bias", "ed-dma"}}, {300, 60, 17}),
        exponential("dma-token", {{"budget_tokens", "50"}, {"bias", "dma"}}, {300, 60, 17});
    for (std::size_t step = 0; step < run.steps().size(); ++step)
        for (int g = 0; g < MethodRun::kKvHeads; ++g) {
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            const auto tokens = upTo(run.position(step) + 1);
            std::vector<double> scores;
            for (const std::int32_t t : tokens) scores.push_back(double(run.score(t, g)));
            expectBest(head.units, tokens, scores, 50, 0);
            EXPECT_EQ(head.units, exponential.steps()[step].heads[std::size_t(g)].units);
            EXPECT_LT(run.outputError(step, g, head.units), 2e-6);
            EXPECT_EQ(head.record.misses, 0);
            for (const std::int32_t t : head.units) {
                if (step == 0 || t == run.position(step)) continue;
                const auto& before = run.steps()[step - 1].heads[std::size_t(g)].units;
                EXPECT_TRUE(std::binary_search(before.begin(), before.end(), t)) << "nothing comes back";
            }
        }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
