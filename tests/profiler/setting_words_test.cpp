#include "profiler/read/setting_words.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(SettingWords, PutNumbersBeforeWhatTheyCount) {
    EXPECT_EQ(settingWords("total_blocks", "12"), "12 total blocks");
    EXPECT_EQ(settingWords("sink_blocks", "1"), "1 sink block");
    EXPECT_EQ(settingWords("device_slots", "0"), "0 device slots");
    EXPECT_EQ(settingWords("max-new-tokens", "7"), "7 new tokens");
    EXPECT_EQ(settingWords("max_new_tokens", "1"), "1 new token");
    EXPECT_EQ(settingWords("budget_tokens", "32768"), "32,768 budget tokens");
    EXPECT_EQ(settingWords("seed", "32768"), "seed 32768");
    EXPECT_EQ(settingWords("window", "2"), "window 2");
    EXPECT_EQ(settingWords("block_size", "64"), "block size 64");
    EXPECT_EQ(settingWords("partial_ratio", "0.3"), "partial ratio 0.3");
    EXPECT_EQ(settingWords("score_decay", "-1"), "score decay -1");
    EXPECT_EQ(settingWords("page_topks", "3,5"), "page topks 3,5");
}

TEST(SettingWords, SayOnAndOffAndKeepSymbolsOfPapers) {
    EXPECT_EQ(settingWords("offload", "false"), "offload off");
    EXPECT_EQ(settingWords("cuda-graphs", "true"), "cuda graphs on");
    EXPECT_EQ(settingWords("k_q", "4"), "k_q 4");
    EXPECT_EQ(settingWords("", "4"), "4");
    EXPECT_EQ(settingWords("device_slots", ""), "device slots ");
}

TEST(SettingWords, OfAChangeKeepWhatIsASentenceAlready) {
    EXPECT_EQ(changeWords("total_blocks 4"), "4 total blocks");
    EXPECT_EQ(changeWords("max-new-tokens 7"), "7 new tokens");
    EXPECT_EQ(changeWords("temperature 0.7"), "temperature 0.7");
    EXPECT_EQ(changeWords("without block 3"), "without block 3");
    EXPECT_EQ(changeWords("keep-selected"), "keep-selected");
    EXPECT_EQ(changeWords(""), "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
