// Methods that fetch a layer ahead: InfiniGen's selection against a float64 computation from weights and keys, what the
// records say of transfers, and the modelled link they travel on.
#include "core/calibrate/attention_samples.h"
#include "core/math/symmetric_eigen.h"
#include "core/session/decode_session.h"
#include "core/transfer/link_timeline.h"
#include "tests/core/backend.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/places.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

std::shared_ptr<const Model> model() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

std::vector<std::int32_t> randomPrompt(int tokens, unsigned seed) {
    std::mt19937 random(seed);
    return test::randomPrompt(tokens, random, model()->config().vocab);
}

struct Outcome {
    CollectingSink sink;
    SessionSummary summary;
    std::vector<float> logits;
};

Outcome run(const std::string& method, int promptTokens, int newTokens, unsigned seed,
            std::vector<std::pair<std::string, std::string>> settings = {}, Link link = {}) {
    Outcome out;
    SessionOptions options;
    options.method = method;
    options.maxNewTokens = newTokens;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.link = link;
    DecodeSession session(model(), {randomPrompt(promptTokens, seed)}, options, out.sink);
    session.prefill();
    while (session.step()) {
        const float* logits = session.logits(0);
        out.logits.insert(out.logits.end(), logits, logits + model()->config().vocab);
    }
    out.summary = session.summary();
    return out;
}

TEST(SymmetricEigen, VectorsAreOrthonormalAndDiagonaliseTheMatrix) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    for (const int n : {1, 2, 7, 64}) {
        std::vector<double> a(std::size_t(n * n));
        for (int i = 0; i < n; ++i)
            for (int j = 0; j <= i; ++j) a[std::size_t(i * n + j)] = a[std::size_t(j * n + i)] = normal(random);
        const SymmetricEigen eigen = symmetricEigen(a, n);
        const auto v = [&](int i, int c) { return eigen.vectors[std::size_t(i * n + c)]; };
        for (int i = 0; i < n; ++i) {
            if (i > 0) {
                EXPECT_GE(eigen.values[std::size_t(i - 1)], eigen.values[std::size_t(i)]);
            }
            for (int j = 0; j < n; ++j) {
                double dot = 0;
                for (int c = 0; c < n; ++c) dot += v(i, c) * v(j, c);
                EXPECT_NEAR(dot, i == j ? 1 : 0, 1e-12 * n);
                double av = 0; // (A v_i)_j
                for (int c = 0; c < n; ++c) av += a[std::size_t(j * n + c)] * v(i, c);
                EXPECT_NEAR(av, eigen.values[std::size_t(i)] * v(i, j), 1e-11 * n);
            }
        }
    }
}

TEST(SymmetricEigen, EqualEigenvaluesAndZerosAreNoTrouble) {
    const std::vector<double> zero(9, 0.0), twice{2, 0, 0, 2};
    EXPECT_EQ(symmetricEigen(zero, 3).values, std::vector<double>(3, 0.0));
    EXPECT_EQ(symmetricEigen(twice, 2).values, (std::vector<double>{2, 2}));
}

TEST(LinkTimeline, TransfersQueueAndOnlyWhatIsLateIsExposed) {
    LinkTimeline link(Link{"test", 1.0, 1.0}); // 1 byte a nanosecond after 1 us
    const auto first = link.start(0, 1000), second = link.start(500, 3000), none = link.start(100, 0);
    EXPECT_EQ(first.doneNs, 2000);
    EXPECT_EQ(second.startNs, 2000);
    EXPECT_EQ(second.doneNs, 6000);
    EXPECT_EQ(none.doneNs, 100);
    EXPECT_EQ(link.missingBytes(second, 5000), 1000);
    EXPECT_EQ(link.missingBytes(second, 2100), 3000);
    EXPECT_EQ(link.missingBytes(second, 6000), 0);
    EXPECT_EQ(link.wait(3000, first.doneNs), 0);
    EXPECT_EQ(link.wait(5000, second.doneNs), 1000);
    EXPECT_EQ(link.modelled(5000), 6000) << "the machine stood still for a microsecond";
}

const std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> kFetchAhead{
    {"sparda", {}},
    {"nosa", {{"ahead", "forecast"}}},
    {"infinigen", {}},
    {"arkvale", {{"prefetch_layers", "1"}, {"page_budget", "20"}}}};

TEST(Lookahead, TravelsWhileTheLayerBeforeAttends) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    const Link fast{"fast", 1000.0, 0.001};
    const Outcome ahead = run("sparda", 2500, 40, 5, {}, fast), waiting = run("nosa", 2500, 40, 5, {}, fast);
    ASSERT_GT(ahead.summary.misses, 0);
    // So fast a link delivers before the next layer asks: only layer 0, which nobody predicts, is exposed.
    for (const StepRecord& record : ahead.sink.steps) {
        if (record.phase == Phase::Prefill) continue;
        for (std::size_t layer = 1; layer < record.layers.size(); ++layer)
            EXPECT_LT(record.layers[layer].exposedNs, 1000) << "step " << record.step << " layer " << layer;
        for (const SelectionRecord& s : record.selections) {
            EXPECT_EQ(s.predicted, s.layer == 0 ? -1 : s.selected);
            EXPECT_EQ(s.used, s.layer == 0 ? 0 : s.selected);
            EXPECT_EQ(s.wasted, 0) << "the predicted set is the attended one";
        }
    }
    // On demand every transfer is exposed.
    for (const StepRecord& record : waiting.sink.steps)
        for (const LayerRecord& layer : record.layers)
            if (layer.h2dBytes > 0) {
                EXPECT_GT(layer.exposedNs, 0);
            }
}

TEST(Lookahead, ASlowLinkIsLateAndTheStallIsExposed) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    const Outcome slow = run("sparda", 2500, 30, 5, {}, Link{"slow", 0.005, 10});
    std::int64_t late = 0, misses = 0, exposed = 0, busy = 0;
    for (const StepRecord& record : slow.sink.steps) {
        for (const SelectionRecord& s : record.selections) {
            EXPECT_LE(s.late, s.misses);
            if (s.layer > 0) late += s.late, misses += s.misses;
        }
        // Layer 0's own blocks queue behind layer 1's, so only sums over layers compare.
        for (const LayerRecord& layer : record.layers)
            if (record.phase == Phase::Decode) exposed += layer.exposedNs, busy += layer.transferNs;
        EXPECT_LE(exposed, busy);
    }
    EXPECT_GT(late, misses / 2) << "a block takes about ten milliseconds, a layer far less";
    EXPECT_GT(exposed, busy / 2);
}

TEST(Lookahead, TransfersChangeNoResult) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    for (const auto& [method, settings] : kFetchAhead)
        EXPECT_EQ(run(method, 1700, 30, 8, settings, Link{"slow", 0.05, 10}).logits,
                  run(method, 1700, 30, 8, settings, Link{"fast", 1000, 0.001}).logits)
            << method;
}

TEST(Lookahead, LayerZeroCanStayOnTheDevice) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    const Outcome away = run("sparda", 1700, 30, 8), stays = run("sparda", 1700, 30, 8, {{"offload_layer0", "false"}});
    EXPECT_EQ(stays.logits, away.logits);
    std::int64_t moved = 0;
    ASSERT_EQ(stays.sink.steps.size(), away.sink.steps.size());
    for (std::size_t i = 0; i < stays.sink.steps.size(); ++i) {
        const StepRecord &mine = stays.sink.steps[i], &other = away.sink.steps[i];
        EXPECT_EQ(mine.layers[0].misses + mine.layers[0].h2dBytes + mine.layers[0].d2hBytes + mine.layers[0].exposedNs,
                  0);
        EXPECT_EQ(mine.layers[0].selected, other.layers[0].selected) << "it chooses all the same";
        moved += other.layers[0].h2dBytes;
        for (std::size_t layer = 1; layer < mine.layers.size(); ++layer)
            EXPECT_EQ(mine.layers[layer].h2dBytes, other.layers[layer].h2dBytes);
    }
    EXPECT_GT(moved, 0);
}

/// Layer 1's own projection of layer 0's input, rotated to `position`, halves apart: [queryHeads, dim].
std::vector<double> guessForLayerOne(const float* input, int position) {
    const ModelConfig& config = model()->config();
    const int dim = config.headDim, half = dim / 2;
    std::vector<float> plain(std::size_t(config.queryHeads * dim));
    const LinearTarget to{model()->layer(1).q, nullptr, plain.data(), int(plain.size()), false};
    makeCpuKernels(1)->linear({input, 1, config.hidden, nullptr, 0.f, {&to, 1}});
    std::vector<double> guess(plain.size());
    for (int h = 0; h < config.queryHeads; ++h)
        for (int i = 0; i < half; ++i) {
            const double angle = position * std::pow(500000.0, -2.0 * i / dim);
            const auto at = std::size_t(h * dim + i), other = at + std::size_t(half);
            guess[at] = double(plain[at]) * std::cos(angle) - double(plain[other]) * std::sin(angle);
            guess[other] = double(plain[other]) * std::cos(angle) + double(plain[at]) * std::sin(angle);
        }
    return guess;
}

// InfiniGen in SparDA's grouped form: layer 1's blocks in the first decode step, computed from the definition. The
// input of layer 0 is the embedding, whatever was attended, so keys, queries and input of one reading of the prompt are
// all that the computation needs.
TEST(Infinigen, ChoosesLayerOnesBlocksByPartialProducts) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    constexpr int kPrompt = 1700, kDims = 20, kWarmUp = 600, kBlock = 64;
    const ModelConfig& config = model()->config();
    const int dim = config.headDim, group = config.group();
    CollectingSink sink;
    SessionOptions options;
    options.method = "infinigen";
    options.maxNewTokens = 2;
    options.stopAtEos = false;
    options.settings = {{"partial_dims", std::to_string(kDims)}, {"warmup_tokens", std::to_string(kWarmUp)}};
    auto ids = randomPrompt(kPrompt, 12);
    DecodeSession session(model(), {ids}, options, sink);
    session.prefill();
    ids.push_back(session.generated()[0][0]); // the token that the decode step reads
    ASSERT_TRUE(session.step());

    std::vector<std::int32_t> positions;
    for (int i = 0; i < kWarmUp; ++i) positions.push_back(i);
    positions.push_back(kPrompt);
    const TextSamples samples = sampleAttention(model(), ids, positions, 0);
    const float* input = samples.layers[0].inputs.data() + std::size_t(kWarmUp) * std::size_t(config.hidden);
    const std::vector<double> guess = guessForLayerOne(input, kPrompt);
    for (const SelectionRecord& s : sink.steps.at(1).selections) {
        if (s.layer != 1) continue;
        std::vector<double> query(std::size_t(dim), 0.0), gram(std::size_t(dim * dim), 0.0); // the group's
        for (int i = s.kvHead * group * dim; i < (s.kvHead + 1) * group * dim; ++i)
            query[std::size_t(i % dim)] += guess[std::size_t(i)];
        for (int token = 0; token < kWarmUp; ++token) {
            std::vector<double> mean(std::size_t(dim), 0.0);
            for (int h = s.kvHead * group; h < (s.kvHead + 1) * group; ++h)
                for (int c = 0; c < dim; ++c)
                    mean[std::size_t(c)] +=
                        double(samples.layers[1].queries[std::size_t((token * config.queryHeads + h) * dim + c)]) /
                        group;
            for (int a = 0; a < dim; ++a)
                for (int b = 0; b < dim; ++b)
                    gram[std::size_t(a * dim + b)] += mean[std::size_t(a)] * mean[std::size_t(b)];
        }
        const SymmetricEigen eigen = symmetricEigen(gram, dim);
        const auto& keys = samples.layers[1].keys[std::size_t(s.kvHead)];
        const int last = kPrompt / kBlock;
        std::vector<double> score(std::size_t(last + 1), -INFINITY);
        for (int token = 0; token < kPrompt; ++token) {
            double product = 0;
            for (int i = 0; i < kDims; ++i) {
                double q = 0, k = 0;
                for (int c = 0; c < dim; ++c) {
                    const double along = eigen.vectors[std::size_t(i * dim + c)];
                    q += along * query[std::size_t(c)];
                    k += along * double(keys[std::size_t(token * dim + c)]);
                }
                product += q * k;
            }
            double& best = score[std::size_t(token / kBlock)];
            best = std::max(best, product);
        }
        double worstTaken = INFINITY, bestLeft = -INFINITY;
        const auto selected = sink.steps[1].blocksOf(s);
        int far = 0;
        for (int block = 1; block <= last - 4; ++block) { // sink 0, window of four
            const bool taken = findBlock(selected, block) != nullptr;
            far += taken ? 1 : 0;
            (taken ? worstTaken : bestLeft) =
                taken ? std::min(worstTaken, score[std::size_t(block)]) : std::max(bestLeft, score[std::size_t(block)]);
        }
        EXPECT_EQ(far, 11);
        // float32 sums of 64 products against float64: 1e-3 of a score's size.
        EXPECT_GE(worstTaken, bestLeft - 1e-3 * (1 + std::abs(bestLeft))) << "KV head " << s.kvHead;
        EXPECT_GT(worstTaken, -INFINITY);
    }
}

// InfiniGen's original form, likewise from its definition: directions of each query head, tokens within alpha of its
// best, one number for all heads.
TEST(InfinigenToken, EachQueryHeadFetchesTheSameNumberOfItsOwnTokens) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    constexpr int kPrompt = 500, kWarmUp = 300, kColumns = 12; // 0.2 of 64
    constexpr double kAlpha = 0.5;
    const ModelConfig& config = model()->config();
    const int dim = config.headDim, group = config.group();
    CollectingSink sink;
    SessionOptions options;
    options.method = "infinigen-token";
    options.maxNewTokens = 2;
    options.stopAtEos = false;
    options.settings = {{"alpha", "0.5"}, {"warmup_tokens", std::to_string(kWarmUp)}};
    auto ids = randomPrompt(kPrompt, 14);
    DecodeSession session(model(), {ids}, options, sink);
    session.prefill();
    ids.push_back(session.generated()[0][0]);
    ASSERT_TRUE(session.step());

    std::vector<std::int32_t> positions;
    for (int i = 0; i <= kPrompt; ++i) positions.push_back(i);
    const TextSamples samples = sampleAttention(model(), ids, positions, 0);
    const float* input = samples.layers[0].inputs.data() + std::size_t(kPrompt) * std::size_t(config.hidden);
    const std::vector<double> guess = guessForLayerOne(input, kPrompt);
    std::vector<std::vector<double>> scores; // [query head][token]
    std::int64_t near = 0;
    for (int h = 0; h < config.queryHeads; ++h) {
        const auto row = [&](int token) {
            return samples.layers[1].queries.data() + std::size_t((token * config.queryHeads + h) * dim);
        };
        const std::vector<double> query(guess.begin() + h * dim, guess.begin() + (h + 1) * dim);
        std::vector<double> gram(std::size_t(dim * dim), 0.0);
        for (int token = 0; token < kWarmUp; ++token)
            for (int a = 0; a < dim; ++a)
                for (int b = 0; b < dim; ++b)
                    gram[std::size_t(a * dim + b)] += double(row(token)[a]) * double(row(token)[b]);
        const SymmetricEigen eigen = symmetricEigen(gram, dim);
        const auto along = [&](const auto* vector, int direction) {
            double sum = 0;
            for (int c = 0; c < dim; ++c) sum += eigen.vectors[std::size_t(direction * dim + c)] * double(vector[c]);
            return sum;
        };
        std::vector<std::pair<double, int>> size; // over the prompt's queries
        for (int i = 0; i < dim; ++i) {
            double sum = 0;
            for (int token = 0; token < kPrompt; ++token) sum += std::abs(along(row(token), i));
            size.push_back({-sum, i});
        }
        std::sort(size.begin(), size.end());
        auto& mine = scores.emplace_back();
        const auto& keys = samples.layers[1].keys[std::size_t(h / group)];
        for (int token = 0; token < kPrompt; ++token) {
            double product = 0;
            for (int i = 0; i < kColumns; ++i)
                product += along(query.data(), size[std::size_t(i)].second) *
                           along(keys.data() + std::size_t(token * dim), size[std::size_t(i)].second);
            mine.push_back(product / std::sqrt(double(dim)));
        }
        const double best = *std::max_element(mine.begin(), mine.end());
        near += std::count_if(mine.begin(), mine.end(), [&](double s) { return s > best - kAlpha; });
    }
    const auto count = std::size_t(near / config.queryHeads);
    ASSERT_GT(count, 2u);
    ASSERT_LT(count, 400u);
    int checked = 0;
    for (const SelectionRecord& s : sink.steps.at(1).selections) {
        if (s.layer != 1) continue;
        ++checked;
        const auto listed = test::idsOf(sink.steps[1], s);
        const std::set<std::int32_t> chosen(listed.begin(), listed.end());
        EXPECT_TRUE(chosen.count(kPrompt)) << "the newest token";
        std::set<std::int32_t> sure, possible{kPrompt}; // float32 may swap neighbours: 1e-3 of a score on either side
        for (int h = s.kvHead * group; h < (s.kvHead + 1) * group; ++h) {
            auto sorted = scores[std::size_t(h)];
            std::sort(sorted.begin(), sorted.end(), std::greater<>());
            const double limit = sorted[count - 1], room = 1e-3 * (1 + std::abs(limit));
            for (int token = 0; token < kPrompt; ++token) {
                const double score = scores[std::size_t(h)][std::size_t(token)];
                if (score > limit + room) sure.insert(token);
                if (score >= limit - room) possible.insert(token);
            }
        }
        EXPECT_TRUE(std::includes(chosen.begin(), chosen.end(), sure.begin(), sure.end())) << "KV head " << s.kvHead;
        EXPECT_TRUE(std::includes(possible.begin(), possible.end(), chosen.begin(), chosen.end()));
        EXPECT_EQ(s.misses, s.selected - 1) << "nothing is cached but the newest token";
    }
    EXPECT_EQ(checked, config.kvHeads);
    const LayerRecord& layer = sink.steps[1].layers[1];
    EXPECT_EQ(layer.h2dBytes, std::int64_t(layer.misses) * 2 * dim * 4 + std::int64_t(layer.misses) * 4)
        << "key, value and eviction score of every token";
}

// ArkVale's prefetch from its definition: layer 1's pages by layer 1's own projection of what layer 0 reads, averaged
// over all query heads.
TEST(ArkValePrefetch, ChoosesLayerOnesPagesByItsProjectionOfLayerZerosInput) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    constexpr int kPrompt = 1213, kPage = 32, kBudget = 14, kTopk = 9, kSink = 1, kWindow = 2;
    const ModelConfig& config = model()->config();
    const int dim = config.headDim, group = config.group();
    CollectingSink sink;
    SessionOptions options;
    options.method = "arkvale";
    options.maxNewTokens = 2;
    options.stopAtEos = false;
    options.settings = {{"block_size", "32"}, {"prefetch_layers", "1"}, {"skip_layers", "1"},  {"page_budget", "14"},
                        {"page_topks", "9"},  {"sink_blocks", "1"},     {"window_blocks", "2"}};
    auto ids = randomPrompt(kPrompt, 16);
    DecodeSession session(model(), {ids}, options, sink);
    session.prefill();
    ids.push_back(session.generated()[0][0]);
    ASSERT_TRUE(session.step());

    const TextSamples samples = sampleAttention(model(), ids, std::vector<std::int32_t>{kPrompt - 1, kPrompt}, 0);
    const float* input = samples.layers[0].inputs.data() + config.hidden;
    const std::vector<double> guess = guessForLayerOne(input, kPrompt);
    const std::vector<double> last(samples.layers[1].queries.begin(),
                                   samples.layers[1].queries.begin() + std::ptrdiff_t(guess.size())); // the prompt's
    const auto bound = [&](const std::vector<double>& query, int page) {
        double sum = 0;
        for (int g = 0; g < config.kvHeads; ++g)
            for (int c = 0; c < dim; ++c) {
                const auto key = [&](int token) {
                    return double(samples.layers[1].keys[std::size_t(g)][std::size_t(token * dim + c)]);
                };
                double low = INFINITY, high = -INFINITY, radius = 0;
                for (int t = page * kPage; t < (page + 1) * kPage; ++t)
                    low = std::min(low, key(t)), high = std::max(high, key(t));
                const double centre = (low + high) / 2;
                for (int t = page * kPage; t < (page + 1) * kPage; ++t) radius += std::abs(centre - key(t)) / kPage;
                for (int h = g * group; h < (g + 1) * group; ++h) {
                    const double q = query[std::size_t(h * dim + c)];
                    sum += std::max(q * (centre - radius), q * (centre + radius));
                }
            }
        return sum / config.queryHeads;
    };
    const int pages = kPrompt / kPage + 1;
    const auto visit = [&](std::set<std::int32_t>& resident, const std::vector<double>& query) {
        std::vector<std::pair<double, int>> order;
        for (int page = kSink; page < pages - kWindow + 1; ++page) order.push_back({-bound(query, page), page});
        std::sort(order.begin(), order.end());
        std::set<std::int32_t> pinned;
        for (int page = 0; page < kSink; ++page) pinned.insert(page);
        for (int page = pages - kWindow; page < pages; ++page) pinned.insert(page);
        for (int i = 0; i < kTopk - kSink - (kWindow - 1); ++i) pinned.insert(order[std::size_t(i)].second);
        resident.insert(pinned.begin(), pinned.end());
        for (auto worst = order.rbegin(); worst != order.rend() && resident.size() > kBudget; ++worst)
            if (pinned.count(worst->second) == 0) resident.erase(worst->second);
    };
    std::set<std::int32_t> resident;
    for (int page = 0; page < pages; ++page) resident.insert(page);
    visit(resident, last);
    const std::set<std::int32_t> before = resident;
    visit(resident, guess);
    ASSERT_NE(resident, before) << "pages are recalled";
    int checked = 0;
    for (const SelectionRecord& s : sink.steps.at(1).selections) {
        EXPECT_EQ(s.predicted, s.selected);
        EXPECT_EQ(s.used, s.selected);
        if (s.layer != 1) continue;
        ++checked;
        const auto listed = test::idsOf(sink.steps[1], s);
        EXPECT_EQ(std::set<std::int32_t>(listed.begin(), listed.end()), resident);
        const auto recalled =
            std::count_if(resident.begin(), resident.end(), [&](std::int32_t page) { return before.count(page) == 0; });
        EXPECT_EQ(s.misses, recalled);
    }
    EXPECT_EQ(checked, config.kvHeads);
}

TEST(Sparda, SparsePrefillUsesTheForecastOfTheLayerBefore) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    // With room for every block the choice does not matter: sparse and full prefill are the same attention.
    const auto all = std::pair<std::string, std::string>{"total_blocks", "40"};
    const Outcome full = run("sparda", 1400, 5, 9, {all}),
                  sparse = run("sparda", 1400, 5, 9, {all, {"prefill", "sparse"}});
    ASSERT_EQ(full.logits.size(), sparse.logits.size());
    for (std::size_t i = 0; i < full.logits.size(); ++i) EXPECT_NEAR(full.logits[i], sparse.logits[i], 2e-3f);
    const Outcome tight = run("sparda", 1400, 5, 9, {{"prefill", "sparse"}});
    EXPECT_NE(tight.logits, full.logits);
}

/// Tokens, blocks and their origins of two runs.
void expectSameChoices(const Outcome& a, const Outcome& b) {
    EXPECT_EQ(a.logits, b.logits);
    ASSERT_EQ(a.sink.steps.size(), b.sink.steps.size());
    std::int64_t compared = 0;
    for (std::size_t i = 0; i < a.sink.steps.size(); ++i) {
        const StepRecord &mine = a.sink.steps[i], &other = b.sink.steps[i];
        EXPECT_EQ(mine.blocks, other.blocks) << "step " << i;
        for (std::size_t s = 0; s < mine.selections.size(); ++s, ++compared)
            EXPECT_EQ(mine.selections[s].predicted, other.selections[s].predicted);
    }
    EXPECT_GT(compared, 50);
}

TEST(Forecast, NosaAndInfllmV2ChooseByItAsSpardaOverThemDoes) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    using Settings = std::vector<std::pair<std::string, std::string>>;
    const Settings budget{{"total_blocks", "20"}, {"window_blocks", "4"}};
    for (const char* prefill : {"full", "sparse"})
        for (const char* backbone : {"nosa", "infllmv2"}) {
            SCOPED_TRACE(std::string(backbone) + ", prefill " + prefill);
            Settings own = budget, over = budget;
            own.insert(own.end(), {{"ahead", "forecast"}, {"prefill", prefill}});
            over.insert(over.end(), {{"backbone", backbone}, {"prefill", prefill}});
            expectSameChoices(run(backbone, 1500, 20, 4, own), run("sparda", 1500, 20, 4, over));
        }
}

TEST(Forecast, WithoutItEveryLayerChoosesForItself) {
    if (test::onCuda()) GTEST_SKIP() << "runs on the CPU backend";
    const Outcome usual = run("nosa", 1500, 20, 4), ahead = run("nosa", 1500, 20, 4, {{"ahead", "forecast"}});
    expectSameChoices(usual, run("nosa", 1500, 20, 4, {{"ahead", "none"}}));
    EXPECT_NE(usual.logits, ahead.logits);
    for (const StepRecord& record : usual.sink.steps)
        for (const SelectionRecord& s : record.selections) EXPECT_EQ(s.predicted, -1);
}

/// What a session of the method says on a model without Forecast heads; empty: it was accepted.
std::string refusalWithoutHeads(const std::shared_ptr<const Model>& plain, const std::string& method,
                                std::vector<std::pair<std::string, std::string>> settings) {
    SessionOptions options;
    options.method = method;
    options.settings = std::move(settings);
    NullSink sink;
    try {
        DecodeSession session(plain, {{1, 2, 3}}, options, sink);
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Unsupported);
        return oneLine(error);
    }
    return {};
}

TEST(Forecast, AModelWithoutHeadsIsRefused) {
    const auto plain = Model::load(test::source("tests/golden/hf_llama"));
    EXPECT_EQ(refusalWithoutHeads(plain, "infllmv2", {{"ahead", "forecast"}}),
              "method infllmv2 with ahead=forecast needs Forecast heads (self_attn.q_future_proj.weight), and " +
                  plain->name() + " has none; use ahead=none, or learn them with kvscope-cli calibrate");
}

TEST(Forecast, ACompressedSoftmaxHasNoPlaceThere) {
    SessionOptions options;
    options.method = "infllmv2";
    options.settings = {{"ahead", "forecast"}, {"lse", "compressed"}};
    NullSink sink;
    EXPECT_THROW(DecodeSession(model(), {{1, 2, 3}}, options, sink), Error);
}

TEST(Sparda, NeedsForecastHeadsAndSaysSo) {
    const auto plain = Model::load(test::source("tests/golden/hf_llama"));
    EXPECT_NE(refusalWithoutHeads(plain, "sparda", {}).find("Forecast heads"), std::string::npos);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
