// Sessions of block-diffusion models with random weights: what must hold whatever the weights are.
#include "core/session/denoise_engine.h"
#include "tests/core/block_rules.h"
#include "tests/core/diffusion_model.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::DenoisedRun;
using test::randomSdar;
using test::sdarConfig;
using test::somePrompt;
using ::testing::Each;
using ::testing::HasSubstr;

SessionOptions optionsOf(const std::string& method, std::vector<std::pair<std::string, std::string>> settings = {},
                         int newTokens = 16) {
    SessionOptions options;
    options.method = method;
    options.maxNewTokens = newTokens;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.threads = 1;
    return options;
}

std::vector<float> confidencesOf(const DenoisedRun& run) {
    std::vector<float> all;
    for (const StepRecord& step : run.steps)
        for (const DenoiseToken& token : step.denoise.tokens) all.push_back(token.confidence);
    return all;
}

void expectSameForwards(const DenoisedRun& a, const DenoisedRun& b, float tolerance = 1e-5f) {
    EXPECT_EQ(a.generated, b.generated);
    const auto x = confidencesOf(a), y = confidencesOf(b);
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], tolerance) << i;
}

TEST(DenoiseSession, LosaWithAWholeBudgetAndEveryTokenActiveIsFullAttention) {
    for (const int block : {1, 4, 16, 64}) {
        const auto model = randomSdar(sdarConfig(block));
        const auto full = denoise(model, {somePrompt(75)}, optionsOf("full", {}, 20));
        expectSameForwards(
            denoise(model, {somePrompt(75)}, optionsOf("losa", {{"active", "64"}, {"budget", "1024"}}, 20)), full);
        expectSameForwards(
            denoise(model, {somePrompt(75)}, optionsOf("quest", {{"budget", "1024"}, {"first", "sparse"}}, 20)), full);
    }
}

TEST(DenoiseSession, LosaWithEveryTokenActiveIsQuest) {
    const auto model = randomSdar(sdarConfig(8));
    const auto losa =
        denoise(model, {somePrompt(200)}, optionsOf("losa", {{"active_threshold", "0"}, {"budget", "32"}}));
    const auto quest = denoise(model, {somePrompt(200)}, optionsOf("quest", {{"budget", "32"}}));
    expectSameForwards(losa, quest, 0);
    ASSERT_EQ(losa.steps.size(), quest.steps.size());
    for (std::size_t i = 0; i < losa.steps.size(); ++i) EXPECT_EQ(losa.steps[i].blocks, quest.steps[i].blocks);
    EXPECT_LT(losa.summary.densityMean, 1);
}

/// The log sums over the prefix, forward by forward.
class PrefixSums final : public DenoiseObserver {
public:
    void attended(LayerId layer, RowId, std::span<const float>, std::span<const float> sums) override {
        if (layer == LayerId{1}) forwards.emplace_back(sums.begin(), sums.end());
    }
    void logits(RowId, std::span<const float>) override {}
    std::vector<std::vector<float>> forwards;
};

TEST(DenoiseSession, OutputsOfTokensThatAreNotActiveAreThoseOfTheForwardBefore) {
    const auto model = randomSdar(sdarConfig(8));
    for (const int active : {0, 3}) {
        PrefixSums sums;
        auto options = optionsOf("losa", {{"active", std::to_string(active)}, {"budget", "32"}}, 8);
        options.denoiseObserver = &sums;
        const auto run = denoise(model, {somePrompt(200)}, options);
        int reused = 0, anew = 0;
        for (std::size_t i = 2; i < run.steps.size(); ++i) {
            const auto& layers = run.steps[i].denoise.layers;
            for (const DenoiseLayer& layer : layers) {
                if (layer.layer != 1 || !layer.sparse) continue;
                for (int token = 0; token < 8; ++token)
                    for (int h = 0; h < 2; ++h) {
                        const std::size_t at = std::size_t(token * 4 + layer.kvHead * 2 + h);
                        const bool same = sums.forwards[i - 1][at] == sums.forwards[i - 2][at];
                        if ((layer.active >> token & 1) == 0) {
                            EXPECT_TRUE(same);
                            ++reused;
                        } else {
                            anew += !same;
                        }
                    }
                EXPECT_EQ(layer.density == 0, active == 0);
            }
        }
        EXPECT_GT(reused, 0);
        EXPECT_EQ(anew > 0, active > 0);
    }
}

TEST(DenoiseSession, ABlockWithoutAPrefixIsDense) {
    const auto run = denoise(randomSdar(sdarConfig(16)), {somePrompt(3)},
                             optionsOf("losa", {{"first", "sparse"}, {"final", "reuse"}}));
    for (const StepRecord& step : run.steps)
        for (std::size_t i = 0; i < step.denoise.layers.size(); ++i)
            EXPECT_EQ(step.denoise.layers[i].sparse, step.denoise.forwards.front().block > 0);
}

TEST(DenoiseSession, FirstAndFinalChooseWhetherThoseForwardsAreSparse) {
    const auto model = randomSdar(sdarConfig(4));
    for (const bool first : {false, true})
        for (const bool last : {false, true}) {
            const auto run = denoise(
                model, {somePrompt(64)},
                optionsOf(
                    "losa",
                    {{"first", first ? "sparse" : "dense"}, {"final", last ? "reuse" : "dense"}, {"budget", "16"}}, 8));
            for (std::size_t i = 1; i < run.steps.size(); ++i) {
                const DenoiseForward& forward = run.steps[i].denoise.forwards.front();
                const bool sparse = forward.final ? last : forward.step > 0 || first;
                for (const DenoiseLayer& layer : run.steps[i].denoise.layers) EXPECT_EQ(layer.sparse, sparse);
                if (sparse && forward.step == 0) {
                    for (const DenoiseLayer& layer : run.steps[i].denoise.layers)
                        EXPECT_EQ(layer.active, 15u) << "nothing to reuse";
                }
            }
        }
}

TEST(DenoiseSession, AnIncompleteLastPageIsAlwaysChosen) {
    const auto run = denoise(randomSdar(sdarConfig(4)), {somePrompt(108)},
                             optionsOf("losa", {{"page", "32"}, {"budget", "32"}}, 12));
    int incomplete = 0;
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
        const int prefix = run.steps[i].denoise.forwards.front().block * 4;
        for (const SelectionRecord& selection : run.steps[i].selections) {
            const auto pages = run.steps[i].blocksOf(selection);
            if (prefix % 32 == 0) continue;
            EXPECT_EQ(pages.back().id(), prefix / 32);
            ++incomplete;
        }
        for (const DenoiseLayer& layer : run.steps[i].denoise.layers) {
            if (layer.sparse) {
                EXPECT_LE(layer.density, 1.f);
            }
        }
    }
    EXPECT_GT(incomplete, 0);
}

TEST(DenoiseSession, KeysOfAFinishedBlockAreThoseOfAPrompt) {
    for (const int block : {1, 4, 16, 64}) {
        const auto model = randomSdar(sdarConfig(block));
        std::vector<std::int32_t> prompt = somePrompt(2 * block);
        const auto whole = denoise(model, {prompt}, optionsOf("full", {}, 2 * block));
        prompt.insert(prompt.end(), whole.generated[0].begin(), whole.generated[0].begin() + block);
        const auto later = denoise(model, {prompt}, optionsOf("full", {}, block));
        std::vector<float> tail;
        for (const StepRecord& step : whole.steps)
            if (!step.denoise.empty() && step.denoise.forwards.front().block == 3)
                for (const DenoiseToken& token : step.denoise.tokens) tail.push_back(token.confidence);
        const auto got = confidencesOf(later);
        ASSERT_EQ(tail.size(), got.size());
        for (std::size_t i = 0; i < tail.size(); ++i) EXPECT_NEAR(tail[i], got[i], 1e-5f);
    }
}

TEST(DenoiseSession, SequencesOfABatchAreWrittenAsEachAlone) {
    const auto model = randomSdar(sdarConfig(4));
    const std::vector<std::vector<std::int32_t>> prompts{somePrompt(3), somePrompt(50, 2, 90, 4),
                                                         somePrompt(121, 2, 90, 5)};
    const auto options = optionsOf("losa", {{"budget", "32"}, {"active", "2"}}, 11);
    const auto together = denoise(model, prompts, options);
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        const auto alone = denoise(model, {prompts[s]}, options);
        EXPECT_EQ(together.generated[s], alone.generated[0]);
        std::vector<float> mine;
        for (const StepRecord& step : together.steps)
            for (const DenoiseForward& forward : step.denoise.forwards)
                for (std::uint32_t i = 0; forward.sequence == int(s) && i < forward.tokens; ++i)
                    mine.push_back(step.denoise.tokens[forward.firstToken + i].confidence);
        const auto own = confidencesOf(alone);
        ASSERT_EQ(mine.size(), own.size());
        for (std::size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(mine[i], own[i], 1e-5f);
    }
}

TEST(DenoiseSession, EveryBlockHasOneCleanForwardAndNoKnownTokenIsOverwritten) {
    for (const int block : {1, 2, 4, 16, 32, 64}) {
        const auto model = randomSdar(sdarConfig(block));
        for (const int prompt : {1, block - 1, block, block + 1, 2 * block + 1}) {
            if (prompt < 1) continue;
            for (const char* strategy :
                 {"sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"}) {
                const auto ids = somePrompt(prompt);
                test::expectBlockRules(
                    denoise(model, {ids}, optionsOf("full", {{"strategy", strategy}, {"steps", "3"}}, 5)), ids, block,
                    5);
            }
        }
    }
}

TEST(DenoiseSession, NeitherTheMaskNorRowsWithoutATokenAreWritten) {
    const auto model = randomSdar(sdarConfig(4, 20)); // ids from 20 on are the mask and padding
    auto options = optionsOf("full", {}, 60);
    options.sampling.temperature = 5; // nearly uniform
    std::set<std::int32_t> seen;
    const auto run = denoise(model, {somePrompt(9, 2, 20)}, options);
    seen.insert(run.generated[0].begin(), run.generated[0].end());
    EXPECT_GT(seen.size(), 10u);
    EXPECT_LT(*seen.rbegin(), 20);
}

TEST(DenoiseSession, AMaskIdInThePromptStays) {
    auto prompt = somePrompt(6);
    prompt[5] = prompt[1] = 90;
    const auto run = denoise(randomSdar(sdarConfig(4)), {prompt}, optionsOf("full", {}, 2));
    const StepRecord& first = run.steps[1];
    EXPECT_EQ(first.denoise.tokens[1].id, 90);
    EXPECT_EQ(first.denoise.tokens[1].candidate, -1);
    EXPECT_EQ(first.denoise.forwards[0].masked, 2);
}

TEST(DenoiseSession, MasksOfAPromptAreWrittenAndThePromptThenReadsAsIfTheyHadStoodThere) {
    for (const char* method : {"full", "losa", "quest", "sparsed"})
        for (const int block : {1, 3, 8, 16, 64}) {
            SCOPED_TRACE(testing::Message() << method << " block " << block);
            const int length = (45 + block - 1) / block * block; // no block has masks of the prompt and new ones
            const auto model = randomSdar(sdarConfig(block));
            std::vector<std::pair<std::string, std::string>> settings{{"prompt_mask", "denoise"}};
            if (std::string(method) != "full") settings.emplace_back("budget", "16");
            auto prompt = somePrompt(length);
            for (const int hole : {9, 10, 30, length - 1}) prompt[std::size_t(hole)] = 90;
            const auto run = denoise(model, {prompt}, optionsOf(method, settings, 20));
            for (const StepRecord& step : run.steps)
                for (const DenoiseToken& token : step.denoise.tokens) {
                    if (!token.written || token.position >= length) continue;
                    EXPECT_EQ(prompt[std::size_t(token.position)], 90) << "written once, where a mask was";
                    prompt[std::size_t(token.position)] = token.candidate;
                }
            EXPECT_EQ(std::count(prompt.begin(), prompt.end(), 90), 0);
            const auto read = denoise(model, {prompt}, optionsOf(method, settings, 20));
            EXPECT_EQ(run.generated, read.generated);
            const auto all = confidencesOf(run), behind = confidencesOf(read);
            ASSERT_GT(all.size(), behind.size());
            for (std::size_t i = 0; i < behind.size(); ++i)
                EXPECT_NEAR(all[all.size() - behind.size() + i], behind[i], 1e-5f) << i;
        }
}

TEST(DenoiseSession, TextBehindAnEndIsShownWhereTrimEndSaysNo) {
    const auto model = randomSdar(sdarConfig(16));
    auto options = optionsOf("full", {}, 40);
    const auto whole = denoise(model, {somePrompt(20)}, options).generated[0];
    const auto config = [&](std::int32_t end) {
        auto changed = sdarConfig(16);
        changed["eos_token_id"] = end;
        return changed;
    };
    const std::int32_t end = whole[4]; // in the middle of the first block, which has 12 new tokens
    const auto first = std::find(whole.begin(), whole.end(), end);
    options.stopAtEos = true;
    for (const char* trims : {"yes", "no"}) {
        options.settings = {{"trim_end", trims}};
        const auto run = denoise(randomSdar(config(end)), {somePrompt(20)}, options);
        const auto shown = std::string(trims) == "yes" ? first + 1 : whole.begin() + 12;
        EXPECT_EQ(run.generated[0], std::vector<std::int32_t>(whole.begin(), shown)) << trims;
    }
}

TEST(DenoiseSession, TheSameSeedDrawsTheSameText) {
    const auto model = randomSdar(sdarConfig(4));
    auto options = optionsOf("full");
    options.sampling = {1.0, 1.0, 0, 11};
    const auto once = denoise(model, {somePrompt(9)}, options), again = denoise(model, {somePrompt(9)}, options);
    EXPECT_EQ(once.generated, again.generated);
    options.sampling.seed = 12;
    EXPECT_NE(denoise(model, {somePrompt(9)}, options).generated, once.generated);
}

TEST(DenoiseSession, LocalityComparesSparseForwardsOfOneBlock) {
    const auto run = denoise(randomSdar(sdarConfig(8)), {somePrompt(200)},
                             optionsOf("losa", {{"budget", "32"}, {"steps", "8"}, {"threshold", "1"}}, 16));
    int first = 0, later = 0;
    for (const StepRecord& step : run.steps)
        for (const SelectionRecord& selection : step.selections) {
            const bool firstSparse = step.denoise.forwards.front().step == 1;
            EXPECT_EQ(selection.kept < 0, firstSparse);
            EXPECT_LE(selection.kept, selection.selected);
            EXPECT_EQ(selection.hits, selection.selected);
            ++(firstSparse ? first : later);
        }
    EXPECT_GT(first, 0);
    EXPECT_GT(later, first);
    EXPECT_EQ(run.summary.localityCount, later);
}

TEST(DenoiseSession, GenerationStopsWithTheBlockOfAnEnd) {
    auto config = sdarConfig(4);
    const auto free = denoise(randomSdar(config), {somePrompt(9)}, optionsOf("full", {}, 40));
    const std::int32_t end = free.generated[0][17]; // whichever token came there ends the next run
    config["eos_token_id"] = end;
    auto options = optionsOf("full", {}, 40);
    options.stopAtEos = true;
    const auto ended = denoise(randomSdar(config), {somePrompt(9)}, options);
    const auto& text = ended.generated[0];
    EXPECT_EQ(text.back(), end);
    EXPECT_EQ(std::count(text.begin(), text.end(), end), 1);
    EXPECT_TRUE(std::equal(text.begin(), text.end(), free.generated[0].begin()));
    EXPECT_EQ(ended.steps.back().denoise.forwards[0].block, (9 + int(text.size()) - 1) / 4);
    EXPECT_TRUE(ended.steps.back().denoise.forwards[0].final);
}

TEST(DenoiseSession, AContextMayEndInsideABlock) {
    auto config = sdarConfig(48);
    config["max_position_embeddings"] = 100;
    const auto model = randomSdar(config);
    EXPECT_EQ(denoise(model, {somePrompt(90)}, optionsOf("losa", {}, 10)).generated[0].size(), 10u);
    NullSink sink;
    test::refusalOf([&] { DecodeSession(model, {somePrompt(91)}, optionsOf("losa", {}, 10), sink); }, "context");
}

TEST(DenoiseSession, WhatItCannotDoIsRefused) {
    const auto model = randomSdar(sdarConfig());
    NullSink sink;
    const auto refusal = [&](const SessionOptions& options, const std::string& named) {
        const std::string line = test::refusalOf([&] { DecodeSession(model, {somePrompt(9)}, options, sink); }, named);
        EXPECT_FALSE(line.empty()) << named;
        return line;
    };
    EXPECT_THAT(refusal(optionsOf("nosa"), "block-diffusion"), HasSubstr("full, quest, losa"));
    refusal(optionsOf("streaming"), "block-diffusion");
    refusal(optionsOf("quest", {{"total_blocks", "9"}}), "total_blocks");
    refusal(optionsOf("quest", {{"active", "3"}}), "active");
    refusal(optionsOf("full", {{"budget", "64"}}), "budget");
    refusal(optionsOf("losa", {{"page", "24"}}), "multiple of 16");
    refusal(optionsOf("losa", {{"block", "65"}}), "block");
    auto options = optionsOf("full");
    options.deviceKvBlocks = 9;
    refusal(options, "--device-kv");
    options = optionsOf("losa");
    options.cachePolicy = "lru";
    refusal(options, "--cache-policy");
    options = optionsOf("losa");
    options.oracle = true;
    refusal(options, "oracle");
    DecodeSession session(model, {somePrompt(9)}, optionsOf("losa"), sink);
    session.prefill();
    test::refusalOf([&] { (void)session.logits(0); }, "next token");
    test::refusalOf([&] { session.forceNextTokens({3}); }, "next token");
}

TEST(DenoiseSession, SettingsOfDenoisingAreUnknownToOtherModels) {
    const auto model = Model::load(kDefaultModel);
    NullSink sink;
    test::refusalOf([&] { DecodeSession(model, {{2, 3}}, optionsOf("quest", {{"budget", "64"}}), sink); }, "budget");
    test::refusalOf([&] { DecodeSession(model, {{2, 3}}, optionsOf("losa"), sink); }, "block diffusion");
}

TEST(DenoiseSession, LogitsThatAreNoNumbersAreRefused) {
    auto config = sdarConfig();
    const std::string folder = testing::TempDir() + "sdar-nan";
    test::writeCheckpoint(folder, config, 7);
    std::fstream file(folder + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-64, std::ios::end); // the last tensor's end
    const std::vector<float> broken(16, std::numeric_limits<float>::infinity());
    file.write(reinterpret_cast<const char*>(broken.data()), 64);
    file.close();
    NullSink sink;
    DecodeSession session(Model::load(folder), {somePrompt(9)}, optionsOf("losa"), sink);
    session.prefill();
    test::refusalOf(
        [&] {
            while (session.step()) {
            }
        },
        "finite");
}

TEST(DenoiseSession, StatesWhatItWasRunWith) {
    const auto run =
        denoise(randomSdar(sdarConfig(8)), {somePrompt(40)}, optionsOf("losa", {{"budget", "48"}, {"page", "48"}}, 4));
    const auto params = nlohmann::json::parse(run.info.paramsJson);
    EXPECT_EQ(params.at("block"), 8);
    EXPECT_EQ(params.at("steps"), 8) << "0 stood for the block";
    EXPECT_EQ(params.at("budget"), 48);
    EXPECT_EQ(params.at("offload"), false);
    EXPECT_EQ(run.info.blockSize, 48);
    EXPECT_EQ(run.info.budgetBlocks, 0);
    EXPECT_EQ(run.summary.decodedTokens, 8 * 1) << "a whole block is written, also behind the four that were asked for";
    EXPECT_EQ(run.steps[0].tokens, 40);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
