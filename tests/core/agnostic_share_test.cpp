// LoSA with a query-agnostic share of its pages: they stay for a block, and are those of most attention.
#include "tests/core/diffusion_model.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/refusal.h"

#include <array>
#include <gtest/gtest.h>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::DenoisedRun;
using test::randomSdar;
using test::sdarConfig;
using test::somePrompt;

using Settings = std::vector<std::pair<std::string, std::string>>;

SessionOptions optionsOf(const char* method, Settings settings) {
    SessionOptions options;
    options.method = method;
    options.maxNewTokens = 40;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.settings.emplace_back("strategy", "low_confidence_static");
    options.threads = 1;
    return options;
}

std::vector<std::int32_t> agnosticOf(const StepRecord& step, const SelectionRecord& selection) {
    std::vector<std::int32_t> pages;
    for (const PackedBlock block : step.blocksOf(selection))
        if (block.origin() == Origin::QueryAgnostic) pages.push_back(block.id());
    return pages;
}

TEST(AgnosticShare, StaysForABlockAndHasItsSize) {
    for (const double share : {0.25, 0.5, 1.0}) {
        SCOPED_TRACE(share);
        const auto run = denoise(randomSdar(sdarConfig(8)), {somePrompt(203), somePrompt(21, 2, 90, 4)},
                                 optionsOf("losa", {{"budget", "64"}, {"agnostic_share", std::to_string(share)}}));
        std::map<std::array<int, 4>, std::vector<std::int32_t>> ofBlock; // layer, sequence, KV head, block
        int compared = 0;
        for (const StepRecord& step : run.steps)
            for (const SelectionRecord& selection : step.selections) {
                const auto forward =
                    std::find_if(step.denoise.forwards.begin(), step.denoise.forwards.end(),
                                 [&](const DenoiseForward& of) { return of.sequence == selection.sequence; });
                ASSERT_NE(forward, step.denoise.forwards.end());
                const int complete = step.denoise.tokens[forward->firstToken].position / 16;
                const auto pages = agnosticOf(step, selection);
                EXPECT_EQ(int(pages.size()), std::min(int(4 * share), complete));
                // Two query heads of five active tokens each choose the rest; an incomplete page comes on top.
                EXPECT_LE(selection.selected, int(pages.size()) + 2 * 5 * (4 - int(4 * share)) + 1);
                const auto [known, added] =
                    ofBlock.try_emplace({selection.layer, selection.sequence, selection.kvHead, forward->block}, pages);
                EXPECT_EQ(pages, known->second);
                compared += added ? 0 : 1;
            }
        EXPECT_GT(compared, 50);
    }
}

/// Where every KV head has one query head and the block is one row of tiles, SparseD's mask of the first forward keeps
/// the same tiles.
TEST(AgnosticShare, IsWhatTheFirstForwardAttendedToMost) {
    nlohmann::json config = sdarConfig(16);
    config["num_key_value_heads"] = 4;
    const auto model = randomSdar(config);
    const std::vector<std::vector<std::int32_t>> prompts{somePrompt(192)};
    const auto losa = denoise(model, prompts, optionsOf("losa", {{"budget", "96"}, {"agnostic_share", "0.5"}}));
    const auto tiles = denoise(model, prompts, optionsOf("sparsed", {{"budget", "32"}, {"skip", "0"}}));
    ASSERT_EQ(losa.steps[2].selections.size(), 8u) << "two layers of four heads";
    ASSERT_EQ(tiles.steps[2].selections.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) {
        const auto kept = test::idsOf(tiles.steps[2], tiles.steps[2].selections[i]);
        ASSERT_EQ(kept.size(), 3u);
        EXPECT_EQ(agnosticOf(losa.steps[2], losa.steps[2].selections[i]), kept);
    }
}

/// A query chooses among the other pages: where the shares come to all pages, so does the union.
TEST(AgnosticShare, LeavesTheOtherPagesToTheQueries) {
    const auto model = randomSdar(sdarConfig(16));
    const std::vector<std::vector<std::int32_t>> prompts{somePrompt(96)};
    auto options = optionsOf("losa", {{"budget", "96"}});
    options.maxNewTokens = 16; // one block
    const auto plain = denoise(model, prompts, options);
    options.settings.emplace_back("agnostic_share", "0.5");
    const auto losa = denoise(model, prompts, options);
    for (const SelectionRecord& selection : losa.steps[2].selections)
        EXPECT_EQ(test::idsOf(losa.steps[2], selection), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(losa.generated, plain.generated);
}

TEST(AgnosticShare, IsTheSameWhereverThePrefixIs) {
    const auto model = randomSdar(sdarConfig(8));
    const std::vector<std::vector<std::int32_t>> prompts{somePrompt(203), somePrompt(50, 2, 90, 4)};
    const Settings settings{{"budget", "64"}, {"agnostic_share", "0.5"}, {"final", "reuse"}};
    const auto resident = denoise(model, prompts, optionsOf("losa", settings));
    for (const char* fetch : {"on_demand", "ahead"})
        for (const int slots : {1, 3, 1000}) {
            auto options = optionsOf("losa", settings);
            options.settings.emplace_back("fetch", fetch);
            options.deviceKvBlocks = slots;
            const auto run = denoise(model, prompts, options);
            EXPECT_EQ(run.generated, resident.generated);
            for (std::size_t step = 0; step < run.steps.size(); ++step)
                for (std::size_t i = 0; i < run.steps[step].selections.size(); ++i)
                    EXPECT_EQ(test::idsOf(run.steps[step], run.steps[step].selections[i]),
                              test::idsOf(resident.steps[step], resident.steps[step].selections[i]));
        }
}

TEST(AgnosticShare, NeedsADenseFirstForward) {
    NullSink sink;
    const auto model = randomSdar(sdarConfig(16));
    EXPECT_NE(test::refusalOf(
                  [&] {
                      DecodeSession(model, {somePrompt(9)},
                                    optionsOf("losa", {{"agnostic_share", "0.5"}, {"first", "sparse"}}), sink);
                  },
                  "first=dense"),
              "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
