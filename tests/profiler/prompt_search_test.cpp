// Finding text in prompts, selected or not, against the recorded selections one by one.
#include "profiler/read/prompt_search.h"

#include "profiler/read/token_text.h"
#include "tests/profiler/planted_prompt.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PromptSearch : public ::testing::Test {
protected:
    PromptSearch() {
        // The word that lies across the border of blocks 5 and 6 makes both of them hold it.
        synthetic::recordPlanted(folder / "a.kvtrace", shape,
                                 {{3, " Lantern"}, {95, " lan"}, {96, "tern"}, {300, " lanTERN"}, {301, "\n\xC3"}});
    }
    static std::vector<int> numbers(const std::vector<FoundBlock>& blocks) {
        std::vector<int> result;
        for (const FoundBlock& found : blocks) result.push_back(found.block);
        return result;
    }
    test::Folder folder;
    synthetic::RunShape shape{.sequences = 2, .denseLayers = 1, .promptTokens = 400};
};

TEST_F(PromptSearch, FindsEveryBlockOfThePromptThatHoldsTheText) {
    const TraceReader reader((folder / "a.kvtrace").string());
    const PromptMatches matches = findInPrompt(reader, 1, 0, "LANtern");
    EXPECT_EQ(matches.promptTokens, 400);
    EXPECT_THAT(numbers(matches.blocks), ElementsAre(0, 5, 6, 18));
    EXPECT_EQ(matches.blocks[0].text, "…word word Lantern word word word word word…");
    EXPECT_EQ(matches.blocks[3].text, "…word word lanTERN\n\xEF\xBF\xBD word word word word word…");
    EXPECT_EQ(findInPrompt(reader, 1, 1, "lantern").promptTokens, 401);
    EXPECT_THAT(findInPrompt(reader, 1, 0, "lanterns").blocks, IsEmpty());
    EXPECT_THAT(findInPrompt(reader, 1, 0, "").blocks, IsEmpty());
    EXPECT_EQ(findInPrompt(reader, 9, 0, "word").promptTokens, 0) << "there is no such run";
}

TEST_F(PromptSearch, LeavesOutWhatTheModelWrote) {
    const TraceReader reader((folder / "a.kvtrace").string());
    std::string generated;
    for (const TokenRow& token : reader.tokens(1, 0)) generated += token.bytes;
    ASSERT_NE(generated.find("hay"), std::string::npos);
    EXPECT_THAT(findInPrompt(reader, 1, 0, "hay").blocks, IsEmpty());
}

TEST_F(PromptSearch, CountsTheHeadsThatSelectedABlock) {
    const TraceReader reader((folder / "a.kvtrace").string());
    const RunRow run = *reader.run(1);
    const auto blocks = findInPrompt(reader, 1, 1, "word").blocks;
    ASSERT_EQ(blocks.size(), 26u);
    int none = 0, some = 0, all = 0;
    for (int step : {1, 7, 12})
        for (int layer = 1; layer < shape.layers; ++layer) {
            const auto choices = blockChoices(reader, run, {step, 1, layer, 1}, blocks);
            ASSERT_EQ(choices.size(), blocks.size());
            for (std::size_t i = 0; i < blocks.size(); ++i) {
                std::vector<bool> selected;
                for (int head = 0; head < shape.kvHeads; ++head) {
                    const auto row = reader.selection(1, step, layer, 1, head);
                    ASSERT_TRUE(row);
                    selected.push_back(std::any_of(row->blocks.begin(), row->blocks.end(),
                                                   [&](PackedBlock block) { return block.id() == blocks[i].block; }));
                }
                const auto heads = std::count(selected.begin(), selected.end(), true);
                EXPECT_EQ(choices[i].choosing, shape.kvHeads);
                EXPECT_EQ(choices[i].heads, heads);
                EXPECT_EQ(choices[i].head, selected[1] ? BlockChoice::Head::Selected : BlockChoice::Head::Passed);
                none += heads == 0, some += heads == 1, all += heads == 2;
            }
        }
    EXPECT_TRUE(none > 0 && some > 0 && all > 0) << none << ", " << some << ", " << all;
}

TEST_F(PromptSearch, SaysWhereNoHeadChose) {
    const TraceReader reader((folder / "a.kvtrace").string());
    const auto blocks = findInPrompt(reader, 1, 0, "lantern").blocks;
    for (const HeadAtStep& at : {HeadAtStep{0, 0, 2, 0}, HeadAtStep{5, 0, 0, 0}}) // the prefill, and a dense layer
        for (const BlockChoice& choice : blockChoices(reader, *reader.run(1), at, blocks)) {
            EXPECT_EQ(choice.choosing, 0);
            EXPECT_EQ(choice.head, BlockChoice::Head::ChoseNone);
        }
}

TEST(TokenText, KeepsCharactersWholeAroundAMatch) {
    TokenText text(4);
    const std::vector<std::string> tokens{"ä", "b\xE2", "\x82\xAC", "needle", "€", "z"};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        TokenRow token;
        token.position = int(i);
        token.bytes = tokens[i];
        text.add(token);
    }
    const auto matches = text.firstMatches("€");
    EXPECT_THAT(matches, ElementsAre(3, 12)) << "the first lies in two tokens of block 0";
    EXPECT_EQ(text.around(12, 3, 6, 0), "…needle€…");
    EXPECT_EQ(text.around(6, 6, 1, 0), "…€needle…");
    EXPECT_EQ(text.around(6, 6, 100, 100), "äb€needle€z");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
