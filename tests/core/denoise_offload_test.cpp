// A prefix of a block-diffusion run that waits on the host: what is attended to is the same whatever the device holds,
// and what travels is counted.
#include "tests/core/diffusion_model.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

#include <array>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::DenoisedRun;
using test::randomSdar;
using test::sdarConfig;
using test::somePrompt;

using Head = std::array<int, 3>; // layer, sequence, KV head

SessionOptions optionsOf(const std::string& method, std::vector<std::pair<std::string, std::string>> settings,
                         std::optional<std::int64_t> slots) {
    SessionOptions options;
    options.method = method;
    options.maxNewTokens = 24;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.threads = 1;
    options.deviceKvBlocks = slots;
    return options;
}

DenoisedRun runOf(const std::shared_ptr<const Model>& model, const SessionOptions& options) {
    return denoise(model, {somePrompt(203), somePrompt(50, 2, 90, 4)}, options);
}

void expectSameTokensAndPages(const DenoisedRun& a, const DenoisedRun& b) {
    EXPECT_EQ(a.generated, b.generated);
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
        ASSERT_EQ(a.steps[i].denoise.tokens.size(), b.steps[i].denoise.tokens.size());
        for (std::size_t t = 0; t < a.steps[i].denoise.tokens.size(); ++t)
            EXPECT_EQ(a.steps[i].denoise.tokens[t].confidence, b.steps[i].denoise.tokens[t].confidence);
        ASSERT_EQ(a.steps[i].selections.size(), b.steps[i].selections.size());
        for (std::size_t s = 0; s < a.steps[i].selections.size(); ++s)
            EXPECT_EQ(test::idsOf(a.steps[i], a.steps[i].selections[s]),
                      test::idsOf(b.steps[i], b.steps[i].selections[s]));
    }
}

TEST(DenoiseOffload, WhatTheDeviceHoldsChangesNoBit) {
    for (const char* method : {"losa", "quest"})
        for (const int block : {4, 8, 16}) {
            const auto model = randomSdar(sdarConfig(block));
            const std::vector<std::pair<std::string, std::string>> settings{{"budget", "48"}, {"final", "reuse"}};
            const auto resident = runOf(model, optionsOf(method, settings, std::nullopt));
            EXPECT_EQ(resident.info.deviceSlots, 0);
            EXPECT_EQ(resident.summary.misses + resident.summary.h2dBytes + resident.summary.d2hBytes, 0);
            for (const std::int64_t slots : {1, 3, 7, 1000})
                for (const char* policy : {"", "keep-selected", "lru"}) {
                    auto options = optionsOf(method, settings, slots);
                    options.cachePolicy = policy;
                    const auto offloaded = runOf(model, options);
                    expectSameTokensAndPages(offloaded, resident);
                    EXPECT_EQ(offloaded.info.deviceSlots, std::min<std::int64_t>(slots, 15));
                    EXPECT_GT(offloaded.summary.misses, 0);
                }
        }
}

/// Pages that are complete before the block of a sequence's forward.
int completePages(const StepRecord& step, int sequence, int page) {
    for (const DenoiseForward& forward : step.denoise.forwards)
        if (forward.sequence == sequence) return step.denoise.tokens[forward.firstToken].position / page;
    return 0;
}

TEST(DenoiseOffload, WithASlotForEachPageAPageTravelsToItOnce) {
    const auto model = randomSdar(sdarConfig(8));
    const auto run = runOf(model, optionsOf("losa", {{"budget", "32"}}, 1000));
    const std::int64_t pageBytes = run.info.blockBytes;
    std::map<Head, std::set<std::int32_t>> there;
    std::int64_t hits = 0, misses = 0;
    for (const StepRecord& step : run.steps) {
        std::vector<std::int64_t> loads(step.layers.size(), 0);
        std::size_t selection = 0;
        for (const DenoiseLayer& layer : step.denoise.layers) {
            auto& own = there[{layer.layer, layer.sequence, layer.kvHead}];
            const int complete = completePages(step, layer.sequence, 16);
            if (!layer.sparse) { // all that is not there passes through
                loads[std::size_t(layer.layer)] += complete - std::int64_t(own.size());
                continue;
            }
            const SelectionRecord& chosen = step.selections.at(selection++);
            int missed = 0;
            for (const PackedBlock block : step.blocksOf(chosen)) {
                const bool hit = block.id() >= complete || own.contains(block.id());
                EXPECT_EQ(block.hit(), hit) << block.id();
                missed += !hit;
                if (block.id() < complete) own.insert(block.id());
            }
            EXPECT_EQ(chosen.misses, missed);
            EXPECT_EQ(chosen.hits, chosen.selected - missed);
            loads[std::size_t(layer.layer)] += missed;
            hits += chosen.hits, misses += chosen.misses;
        }
        if (step.denoise.empty()) continue;
        for (std::size_t layer = 0; layer < loads.size(); ++layer) {
            EXPECT_EQ(step.layers[layer].h2dBlocks, loads[layer]);
            EXPECT_EQ(step.layers[layer].h2dBytes, loads[layer] * pageBytes);
            EXPECT_EQ(step.layers[layer].exposedNs > 0, loads[layer] > 0) << "the attention waits";
        }
    }
    EXPECT_EQ(run.summary.hits, hits);
    EXPECT_EQ(run.summary.misses, misses);
    EXPECT_GT(hits, 0);
}

TEST(DenoiseOffload, PagesAskedForAheadChangeNoBit) {
    for (const int block : {4, 8, 16}) {
        const auto model = randomSdar(sdarConfig(block));
        for (const char* final : {"reuse", "dense"}) {
            const std::vector<std::pair<std::string, std::string>> settings{{"budget", "48"}, {"final", final}};
            auto ahead = settings;
            ahead.emplace_back("fetch", "ahead");
            const auto resident = runOf(model, optionsOf("losa", settings, std::nullopt));
            for (const std::int64_t slots : {1, 3, 7, 1000}) {
                const auto waiting = runOf(model, optionsOf("losa", settings, slots));
                for (const StepRecord& step : waiting.steps)
                    for (const SelectionRecord& chosen : step.selections) EXPECT_EQ(chosen.predicted, -1);
                const auto sent = runOf(model, optionsOf("losa", ahead, slots));
                expectSameTokensAndPages(sent, resident);
                expectSameTokensAndPages(sent, waiting);
            }
        }
    }
}

/// Every page that travels is a miss, a page that was sent in vain, or one that passes through in a dense forward.
TEST(DenoiseOffload, EveryPageThatIsSentAheadIsAccountedFor) {
    const auto model = randomSdar(sdarConfig(8));
    for (const std::int64_t slots : {2, 5, 1000}) {
        const auto run = runOf(model, optionsOf("losa", {{"budget", "32"}, {"fetch", "ahead"}}, slots));
        std::int64_t predicted = 0, used = 0, sentAndUsed = 0;
        for (const StepRecord& step : run.steps) {
            if (step.denoise.empty()) continue;
            std::vector<std::int64_t> least(step.layers.size(), 0), most = least;
            std::size_t selection = 0;
            for (const DenoiseLayer& layer : step.denoise.layers) {
                const int complete = completePages(step, layer.sequence, 16);
                if (!layer.sparse) {
                    most[std::size_t(layer.layer)] += complete;
                    least[std::size_t(layer.layer)] += std::max<std::int64_t>(0, complete - slots);
                    continue;
                }
                const SelectionRecord& chosen = step.selections.at(selection++);
                ASSERT_GE(chosen.predicted, 0) << "a sparse forward follows another one of its block";
                EXPECT_LE(chosen.predicted, std::min<std::int64_t>(complete, slots));
                EXPECT_LE(chosen.used + chosen.wasted, chosen.predicted);
                EXPECT_LE(chosen.used, chosen.selected);
                least[std::size_t(layer.layer)] += chosen.misses + chosen.wasted;
                most[std::size_t(layer.layer)] += chosen.misses + chosen.wasted;
                predicted += chosen.predicted, used += chosen.used;
                sentAndUsed += std::max(0, chosen.used + chosen.misses - chosen.selected);
            }
            for (std::size_t layer = 0; layer < least.size(); ++layer) {
                EXPECT_GE(step.layers[layer].h2dBlocks, least[layer]);
                EXPECT_LE(step.layers[layer].h2dBlocks, most[layer]);
                EXPECT_EQ(step.layers[layer].h2dBytes, step.layers[layer].h2dBlocks * run.info.blockBytes);
            }
        }
        EXPECT_GT(used, 0);
        EXPECT_LE(used, predicted);
        EXPECT_GT(sentAndUsed, 0) << "some pages travel before they are needed";
    }
}

/// Before a block's second forward a layer asks for what all its tokens would choose by the queries that they had in
/// the first one: in the first layer that is what Quest reads there, where its first forward is sparse.
TEST(DenoiseOffload, TheForecastOfASecondForwardIsWhatAllTokensWouldChoose) {
    const auto model = randomSdar(sdarConfig(8));
    auto options =
        optionsOf("losa", {{"budget", "32"}, {"fetch", "ahead"}, {"strategy", "low_confidence_static"}}, 1000);
    const auto run = runOf(model, options);
    options.method = "quest";
    options.settings = {{"budget", "32"}, {"first", "sparse"}, {"strategy", "low_confidence_static"}};
    options.maxNewTokens = 1; // one block, whose first forward reads the same
    const auto first = runOf(model, options);
    ASSERT_EQ(first.steps[1].denoise.forwards.size(), 2u);
    std::size_t compared = 0;
    for (const SelectionRecord& chosen : run.steps[2].selections)
        for (const SelectionRecord& all : first.steps[1].selections) {
            if (all.layer > 0 || chosen.layer > 0 || all.sequence != chosen.sequence || all.kvHead != chosen.kvHead)
                continue;
            const int complete = completePages(first.steps[1], all.sequence, 16);
            int wanted = 0;
            for (const PackedBlock page : first.steps[1].blocksOf(all)) wanted += page.id() < complete;
            EXPECT_EQ(chosen.predicted, wanted);
            ++compared;
        }
    EXPECT_EQ(compared, 4u);
}

/// Later forwards ask for the pages of the forward before and those of the tokens just written.
TEST(DenoiseOffload, LaterForecastsHoldThePagesOfTheForwardBefore) {
    const auto model = randomSdar(sdarConfig(8));
    const auto run = runOf(
        model, optionsOf("losa", {{"budget", "32"}, {"fetch", "ahead"}, {"strategy", "low_confidence_static"}}, 1000));
    int compared = 0;
    for (std::size_t step = 3; step < run.steps.size(); ++step)
        for (const SelectionRecord& chosen : run.steps[step].selections)
            if (chosen.kept >= 0) { // a sparse forward of the block came before
                EXPECT_GE(chosen.used, chosen.kept - 1) << "but for a last page that is incomplete";
                EXPECT_GE(chosen.predicted, chosen.used);
                ++compared;
            }
    EXPECT_GT(compared, 20);
}

TEST(DenoiseOffload, APageGoesToTheHostWhenACleanForwardCompletesIt) {
    for (const int block : {4, 8, 16, 32}) {
        const auto model = randomSdar(sdarConfig(block));
        const auto run = runOf(model, optionsOf("losa", {{"budget", "32"}}, 4));
        for (const StepRecord& step : run.steps) {
            int pages = 0;
            if (step.denoise.empty())
                pages = 203 / block * block / 16 + 50 / block * block / 16;
            else
                for (const DenoiseForward& forward : step.denoise.forwards) {
                    const int first = step.denoise.tokens[forward.firstToken].position;
                    if (forward.final) pages += (first + block) / 16 - first / 16;
                }
            for (const LayerRecord& layer : step.layers) {
                EXPECT_EQ(layer.d2hBlocks, pages * 2) << "two KV heads";
                EXPECT_EQ(layer.d2hBytes, pages * 2 * run.info.blockBytes);
            }
        }
    }
}

TEST(DenoiseOffload, BytesSizeTheDeviceTierToo) {
    const auto model = randomSdar(sdarConfig(8));
    auto options = optionsOf("losa", {}, std::nullopt);
    options.deviceKvBytes = std::int64_t(2) * 2 * 2 * 5 * 16 * 2 * 32 * 4; // sequences, layers, KV heads, pages of 16
    EXPECT_EQ(runOf(model, options).info.deviceSlots, 5);
}

TEST(DenoiseOffload, IsRefusedWhereNoPagesAreChosen) {
    const auto model = randomSdar(sdarConfig(8));
    NullSink sink;
    const auto refusal = [&](const std::shared_ptr<const Model>& of, const SessionOptions& options, const char* word) {
        EXPECT_NE(test::refusalOf([&] { DecodeSession(of, {somePrompt(9, 2, 60)}, options, sink); }, word), "") << word;
    };
    refusal(model, optionsOf("full", {}, 9), "--device-kv");
    refusal(model, optionsOf("sparsed", {}, 9), "--device-kv");
    refusal(model, optionsOf("losa", {}, 0), "--device-kv 1");
    auto options = optionsOf("losa", {}, 9);
    options.cachePolicy = "lru-s";
    refusal(model, options, "lru-s");
    const auto llada =
        randomSdar(nlohmann::json::parse(std::ifstream(test::source("tests/golden/denoise/llada/config.json"))));
    refusal(llada, optionsOf("full", {}, 9), "--device-kv");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
