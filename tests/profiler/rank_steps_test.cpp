// Numbers of ranks step by step, against the traces' own rows, and what is said of late ranks and of their clocks.
#include "base/error.h"
#include "profiler/merge/merge.h"
#include "profiler/merge/rank_steps.h"
#include "profiler/merge/rank_words.h"
#include "profiler/read/trace_reader.h"
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
using testing::IsEmpty;

class RankStepsTest : public testing::Test {
protected:
    std::string path(const std::string& name) const { return (folder / name).string(); }
    static void change(const std::string& file, const std::string& statement) {
        test::sql(file, statement, SQLITE_OPEN_READWRITE);
    }
    /// Times of a rank's steps are multiplied, and every decode step has one collective of 1 us.
    std::string rank(int number, int factor, const std::string& keys = "") {
        const std::string file = path(fmt::format("rank{}.kvtrace", number));
        synthetic::recordFile(file, {.decodeSteps = 6, .seed = std::uint64_t(number) + 1});
        change(file,
               fmt::format("INSERT OR REPLACE INTO run_meta VALUES (1, 'rank', '{}'), (1, 'group', 'job'){}; UPDATE "
                           "step SET start_ns = 1000000 * (id & 0xFF), duration_ns = {} * 1000",
                           number, keys.empty() ? "" : ", " + keys, 100 * factor));
        return file;
    }
    void addCollectives(const std::string& file, std::int64_t late) {
        change(file,
               fmt::format("INSERT OR IGNORE INTO text(value) VALUES ('collectives'); INSERT OR IGNORE INTO "
                           "text(value) SELECT 'all_reduce ' || (id & 0xFF) FROM step; INSERT INTO span(run_id, "
                           "step, layer, kind, track, name, start_ns, duration_ns, depth) SELECT 1, -1, -1, 0, "
                           "(SELECT id FROM text WHERE value = 'collectives'), t.id, s.start_ns + {0}, 90000 - {0}, "
                           "0 FROM step s JOIN text t ON t.value = 'all_reduce ' || (s.id & 0xFF)",
                           late));
    }
    /// The only group of the merged trace.
    RankSteps merged(std::vector<std::string>* problems = nullptr) {
        mergeTraces({folder.path().string()}, path("all.kvtrace"), true);
        const TraceReader reader(path("all.kvtrace"));
        runs = reader.runs();
        const std::vector<RankGroup> groups = rankGroups(runs);
        EXPECT_EQ(groups.size(), 1U);
        if (problems) *problems = rankProblems(runs, groups[0]);
        clocks = clockSentence(runs, groups[0]);
        return readRankSteps(reader, runs, groups[0]);
    }
    test::Folder folder;
    std::vector<RunRow> runs;
    std::string clocks;
};

TEST_F(RankStepsTest, CellsAreTheRowsOfTheTracesAndAMissingRankHasNone) {
    for (const int number : {0, 1, 3}) rank(number, number + 1, "(1, 'world', '4')");
    std::vector<std::string> problems;
    const RankSteps steps = merged(&problems);
    EXPECT_THAT(steps.ranks, ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(steps.runs[2], 0);
    ASSERT_EQ(steps.steps, 7);
    EXPECT_THAT(problems.front(), HasSubstr("Rank 2 of 4 is missing from group job"));
    for (int row = 0; row < 4; ++row)
        for (int step = 1; step < 7; ++step) {
            if (row == 2) {
                for (const RankNumberInfo& number : rankNumbers())
                    EXPECT_TRUE(std::isnan(steps.at(number.number, step, row)));
                continue;
            }
            const auto said =
                test::sql(path("all.kvtrace"),
                          fmt::format("SELECT duration_ns, 1.0 * hits / (hits + misses), misses, h2d_bytes, "
                                      "exposed_ns FROM v_step WHERE run_id = {} AND step = {}",
                                      steps.runs[std::size_t(row)], step))
                    .rows.at(0);
            const RankNumber numbers[] = {RankNumber::StepTime, RankNumber::HitRate, RankNumber::Misses,
                                          RankNumber::Bytes, RankNumber::Exposed};
            for (std::size_t i = 0; i < 5; ++i)
                EXPECT_FLOAT_EQ(steps.at(numbers[i], step, row), std::stof(said[i])) << row << " " << step << " " << i;
        }
    EXPECT_FALSE(steps.knows(RankNumber::Wait)) << "no rank recorded collectives";
    EXPECT_EQ(steps.rowOf(steps.runs[3]), 3);
    EXPECT_EQ(steps.rowOf(99), std::nullopt);
    const std::string late = lateSentence(steps);
    EXPECT_THAT(late, HasSubstr("Rank 3 is slowest: its steps take 400 us in the median, rank 0's take 100 us; of 6 "
                                "steps it took longest in 100 %"));
}

TEST_F(RankStepsTest, WhoWaitsForWhomComesFromCollectives) {
    addCollectives(rank(0, 1, "(1, 'clocks', '[[\"monotonic:m\",0,0,0]]')"), 1000);
    addCollectives(rank(1, 1, "(1, 'clocks', '[[\"monotonic:m\",0,0,0]]')"), 31'000);
    const RankSteps steps = merged();
    ASSERT_TRUE(steps.knows(RankNumber::Wait));
    for (int step = 1; step < 7; ++step) {
        EXPECT_FLOAT_EQ(steps.at(RankNumber::Wait, step, 0), 30'000);
        EXPECT_FLOAT_EQ(steps.at(RankNumber::Wait, step, 1), 0);
    }
    EXPECT_THAT(lateSentence(steps),
                HasSubstr("The others wait for rank 1 in 100 % of 6 steps, rank 0 the longest: 30 us "
                          "of 100 us a step"));
}

TEST_F(RankStepsTest, RanksThatAreAlikeAndRanksWithoutTimesAreSaid) {
    rank(0, 100);
    rank(1, 101);
    EXPECT_EQ(lateSentence(merged()), "Steps take about as long on all ranks: 10 ms to 10.1 ms in the median");
    change(path("rank1.kvtrace"), "UPDATE step SET duration_ns = duration_ns * 100 / 101");
    EXPECT_EQ(lateSentence(merged()), "Steps take about as long on all ranks: 10 ms in the median");
    for (const char* name : {"rank0.kvtrace", "rank1.kvtrace"})
        change(path(name), "INSERT OR REPLACE INTO run_meta VALUES (1, 'knows', '[\"selections\"]')");
    const RankSteps steps = merged();
    for (const RankNumberInfo& number : rankNumbers()) EXPECT_FALSE(steps.knows(number.number)) << number.id;
    EXPECT_EQ(lateSentence(steps), "");
}

TEST_F(RankStepsTest, AClockThatIsOffStaysInTheMergedTrace) {
    const auto keys = [](std::int64_t monotonic, std::int64_t utc) {
        return fmt::format("(1, 'clocks', '[[\"monotonic:a\",0,{},10],[\"utc\",0,{},10]]')", monotonic, utc);
    };
    rank(0, 1, keys(7'000'000'000, 1'800'000'000'000'000'000));
    rank(1, 1, keys(7'000'500'000, 1'800'000'001'000'500'000));
    std::vector<std::string> problems;
    merged(&problems);
    EXPECT_THAT(problems, ElementsAre("Rank 1 beside rank 0: its clock utc is 1.000 s ahead by monotonic"));
    EXPECT_EQ(clocks, "Clocks aligned, by the clock of their machine: rank 0 +0 ns, rank 1 +500.0 us (error 20 ns)");
    change(path("rank1.kvtrace"),
           "UPDATE run_meta SET value = '[[\"utc\",0,1800000000000500000,10]]' WHERE key = 'clocks'");
    merged(&problems);
    EXPECT_EQ(clocks,
              "Clocks aligned, by UTC: rank 0 +0 ns, rank 1 +500.0 us (error 20 ns); the order of what happens on "
              "different ranks is not certain");
    change(path("rank1.kvtrace"), "DELETE FROM run_meta WHERE key = 'clocks'; UPDATE run SET created_utc = 'some day'");
    merged(&problems);
    EXPECT_THAT(problems, ElementsAre("Rank 1 has no clock in common with the others: its times are not shifted"));
}

TEST_F(RankStepsTest, ReadingsOfATraceTakeTheirDriftIntoTheError) {
    const std::string first = rank(0, 1), second = rank(1, 1);
    // rank 1's UTC gains 3 us in ten seconds; each was read three times
    const auto readings = [](std::int64_t begin, std::int64_t gains) {
        std::string statement = "INSERT OR IGNORE INTO text(value) VALUES ('utc');";
        for (int i = 0; i < 3; ++i)
            statement +=
                fmt::format("INSERT INTO clock_sync SELECT NULL, 1, id, {}, {}, 100 FROM text WHERE value = "
                            "'utc';",
                            10'000'000'000 * i, 1'800'000'000'000'000'000 + begin + (10'000'000'000 + gains) * i);
        return statement;
    };
    change(first, readings(0, 0));
    change(second, readings(5'000'000, 3000));
    const MergeResult result = mergeTraces({folder.path().string()}, path("all.kvtrace"), true);
    ASSERT_EQ(result.runs.size(), 2U);
    EXPECT_EQ(result.runs[1].clock, "utc");
    EXPECT_EQ(result.runs[1].addedNs, 5'000'000 + 3000) << "the median of the offsets";
    EXPECT_EQ(result.runs[1].errorNs, 200 + 3000) << "both readings' errors and the drift";
    EXPECT_EQ(
        test::value(path("all.kvtrace"), "SELECT count(*) || ' ' || min(own_ns) FROM v_clock_sync WHERE run_id = 2"),
        "3 5003000");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
