// Blocks that two runs select differently, with the gap of each score to the cut of its own list.
#include "profiler/compare/selection_gaps.h"
#include "profiler/format/selection_blob.h"
#include "profiler/read/look_back.h"
#include "profiler/read/recording_cost.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <cmath>
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;

struct Block {
    int id;
    Origin origin;
    float score;
};

/// As a literal of SQL.
std::string blobOf(const std::vector<Block>& blocks, bool scored) {
    std::vector<PackedBlock> packed;
    std::vector<float> scores;
    for (const Block& block : blocks) {
        packed.emplace_back(block.id, block.origin, true);
        if (scored) scores.push_back(block.score);
    }
    std::vector<std::byte> bytes;
    EXPECT_TRUE(encodeSelection({packed, scores}, bytes));
    std::string text = "x'";
    for (const std::byte byte : bytes) text += fmt::format("{:02x}", unsigned(byte));
    return text + "'";
}

class SelectionGapsTest : public testing::Test {
protected:
    std::string record(const char* name, const std::vector<Block>& blocks, bool scored = true) const {
        const std::string file = (folder / name).string();
        synthetic::recordFile(file, {.decodeSteps = 2});
        test::sql(file,
                  fmt::format("UPDATE selection SET blocks = {}, selected = {}, hits = {}, misses = 0, kept = NULL",
                              blobOf(blocks, scored), blocks.size(), blocks.size()),
                  SQLITE_OPEN_READWRITE);
        return file;
    }
    static std::vector<StepPair> pairs() { return {{1, 1, 1, true}, {2, 2, 2, true}}; }
    test::Folder folder;
};

TEST_F(SelectionGapsTest, TheCutIsTheLowestScoreThatWasChosen) {
    constexpr Origin chosen = Origin::QueryAware;
    const TraceReader a(
        record("a.kvtrace", {{0, Origin::Sink, -9.f}, {3, chosen, 1.f}, {5, chosen, 1.004f}, {9, chosen, 2.f}}));
    const TraceReader b(
        record("b.kvtrace", {{0, Origin::Sink, -9.f}, {4, chosen, 1.5f}, {5, chosen, 1.f}, {9, chosen, 2.f}}));
    std::vector<DifferingBlock> seen;
    int heads = 0;
    const GapSums sums = readSelectionGaps(a, 1, b, 1, pairs(), [&](const HeadDifference& head) {
        if (heads++ == 0) seen.assign(head.blocks.begin(), head.blocks.end());
    });
    ASSERT_EQ(seen.size(), 2U);
    EXPECT_EQ(seen[0].block, 3);
    EXPECT_TRUE(seen[0].onlyA);
    EXPECT_FLOAT_EQ(seen[0].gap, 0) << "it is the cut itself; the sink's score does not count";
    EXPECT_TRUE(seen[0].nearTie());
    EXPECT_EQ(seen[1].block, 4);
    EXPECT_FALSE(seen[1].onlyA);
    EXPECT_FLOAT_EQ(seen[1].gap, 0.5f);
    EXPECT_FLOAT_EQ(seen[1].gapOfRange, 0.5f);
    EXPECT_FALSE(seen[1].nearTie());
    const auto selections =
        std::stoll(test::value(a.path(), "SELECT count(*) FROM selection WHERE id >> 30 & 1023 > 0"));
    EXPECT_EQ(sums.heads, selections);
    EXPECT_EQ(sums.differingHeads, selections);
    EXPECT_EQ(heads, selections);
    EXPECT_EQ(sums.chosen, 8 * selections);
    EXPECT_EQ(sums.differing, 2 * selections);
    EXPECT_EQ(sums.nearTies, selections);
    EXPECT_THAT(sums.sentence(), HasSubstr("(25 %) are in one run only"));
    const GapSums one = readSelectionGaps(a, 1, b, 1, pairs(), {}, 0, 0, 1);
    EXPECT_EQ(one.heads, 2) << "two steps of one KV head";
}

TEST_F(SelectionGapsTest, EqualRunsAndRunsWithoutScoresAreSaid) {
    const TraceReader a(record("a.kvtrace", {{3, Origin::QueryAware, 1.f}, {9, Origin::QueryAware, 2.f}}, false));
    const TraceReader b(record("b.kvtrace", {{4, Origin::QueryAware, 1.f}, {9, Origin::QueryAware, 2.f}}, false));
    EXPECT_THAT(readSelectionGaps(a, 1, a, 1, pairs(), {}).sentence(), HasSubstr("are the same in both runs"));
    const GapSums sums = readSelectionGaps(a, 1, b, 1, pairs(), {});
    EXPECT_EQ(sums.scored, 0);
    EXPECT_THAT(sums.sentence(), HasSubstr("no scores were recorded"));
    RunRow left = *a.run(1), right = *b.run(1);
    EXPECT_EQ(gapsRefusal(left, right), "");
    right.blockSize = 2 * left.blockSize;
    EXPECT_THAT(gapsRefusal(left, right), HasSubstr("their numbers mean other tokens"));
}

TEST_F(SelectionGapsTest, LookBackCountsFromTheNewestBlock) {
    constexpr Origin chosen = Origin::QueryAware;
    const TraceReader reader(
        record("a.kvtrace", {{0, Origin::Sink, 0}, {10, chosen, 0}, {12, chosen, 0}, {20, Origin::Window, 0}}));
    const RunRow run = *reader.run(1);
    const std::vector<LayerLookBack> layers = readLookBack(reader, run);
    ASSERT_FALSE(layers.empty());
    for (const LayerLookBack& layer : layers) {
        EXPECT_DOUBLE_EQ(layer.median, 8 * run.blockSize);
        EXPECT_DOUBLE_EQ(layer.ninety, 10 * run.blockSize);
        EXPECT_DOUBLE_EQ(layer.mean, 9 * run.blockSize);
        EXPECT_FALSE(layer.recall.has_value());
    }
}

TEST_F(SelectionGapsTest, WhatRecordingAddsIsReadOrNotKnown) {
    const std::string file = record("a.kvtrace", {{3, Origin::QueryAware, 1.f}});
    const auto cost = [&] {
        const TraceReader reader(file);
        return recordingCost(reader, *reader.run(1));
    };
    EXPECT_FALSE(cost().known());
    EXPECT_EQ(cost().text(), "not known");
    const auto change = [&](const std::string& sql) { test::sql(file, sql, SQLITE_OPEN_READWRITE); };
    change(
        "INSERT OR IGNORE INTO text(value) VALUES ('recording (ns)'); INSERT INTO counter SELECT NULL, 1, id, 0, 1000, "
        "20 FROM text WHERE value = 'recording (ns)'; INSERT INTO counter SELECT NULL, 1, id, 1000, 1040, 20 FROM text "
        "WHERE value = 'recording (ns)'");
    EXPECT_EQ(cost().way, RecordingCost::Way::Counted);
    EXPECT_DOUBLE_EQ(cost().share, 40.0 / 2000);
    EXPECT_FALSE(cost().costly());
    EXPECT_EQ(cost().text(), "2 % of a step, of the thread that decodes");
    change(
        "INSERT INTO run_meta VALUES (1, 'recording_overhead', '{\"plain_ms\":10,\"recorded_ms\":12,\"plain_cpu_ms\":8,"
        "\"recorded_cpu_ms\":8.4,\"steps\":9,\"tokens_equal\":false}')");
    EXPECT_EQ(cost().way, RecordingCost::Way::Compared);
    EXPECT_NEAR(cost().share, 0.05, 1e-12) << "of processor time";
    EXPECT_NEAR(*cost().wallShare, 0.2, 1e-12);
    EXPECT_TRUE(cost().costly());
    EXPECT_THAT(cost().text(), HasSubstr("the tokens were NOT the same"));
    change("UPDATE run_meta SET value = '{\"plain_ms\":\"x\"}' WHERE key = 'recording_overhead'");
    EXPECT_EQ(cost().way, RecordingCost::Way::Counted) << "a key that cannot be read says nothing";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
