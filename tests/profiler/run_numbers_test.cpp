// The numbers of a table of runs: those of the run's summary, read in pieces, and what follows from them.
#include "profiler/read/run_numbers.h"

#include "profiler/read/step_kind.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class RunNumbersTest : public ::testing::Test {
protected:
    std::string recorded(const synthetic::RunShape& shape) {
        const auto path = folder / "run.kvtrace";
        synthetic::recordFile(path, shape);
        return path.string();
    }
    static RunSummary summaryOf(const std::string& path, int piece = 1 << 20) {
        const TraceReader reader(path);
        const RunRow run = reader.run(1).value();
        RunNumbers numbers;
        while (!extendRunNumbers(numbers, reader, run, piece)) {
        }
        return numbers.sums.summary(run);
    }
    static double query(const std::string& path, const std::string& sql) { return std::stod(test::value(path, sql)); }

    test::Folder folder;
};

TEST_F(RunNumbersTest, AreThoseOfTheSummaryHoweverSmallThePieces) {
    const std::string path = recorded({.sequences = 2, .decodeSteps = 23});
    const RunSummary whole = summarize(TraceReader(path), 1);
    for (const int piece : {1, 7, 24, 1000}) {
        SCOPED_TRACE(piece);
        const RunSummary read = summaryOf(path, piece);
        EXPECT_EQ(read.decodeSteps, whole.decodeSteps);
        EXPECT_EQ(read.countedSteps, whole.countedSteps);
        EXPECT_DOUBLE_EQ(read.tokensPerSecond, whole.tokensPerSecond);
        EXPECT_DOUBLE_EQ(read.hitRate, whole.hitRate);
        EXPECT_DOUBLE_EQ(read.h2dBytesPerStep, whole.h2dBytesPerStep);
        EXPECT_DOUBLE_EQ(read.exposedMsPerStep, whole.exposedMsPerStep);
    }
}

TEST_F(RunNumbersTest, BytesPerTokenAreThoseOfTheCountedSteps) {
    const std::string path = recorded({.sequences = 2, .decodeSteps = 20});
    const double warm = query(path, "SELECT 1.0 * sum(h2d_bytes) / sum(tokens) FROM v_step"
                                    " WHERE phase = 'decode' AND kept IS NOT NULL");
    ASSERT_GT(warm, 0);
    EXPECT_NEAR(h2dBytesPerToken(summaryOf(path)), warm, 1e-9 * warm);
    const double all = query(path, "SELECT 1.0 * sum(h2d_bytes) / sum(tokens) FROM v_step WHERE phase = 'decode'");
    setColdSteps(ColdSteps::Counted);
    const double counted = h2dBytesPerToken(summaryOf(path));
    setColdSteps(ColdSteps::LeftOut);
    EXPECT_NEAR(counted, all, 1e-9 * all);
    EXPECT_NE(all, warm);
}

TEST_F(RunNumbersTest, DeviceKvIsThatOfTheSlotsOrOfAllTokens) {
    const std::string path = recorded({.sequences = 2, .decodeSteps = 20});
    RunRow run = TraceReader(path).run(1).value();
    RunSummary summary = summaryOf(path);
    ASSERT_GT(run.deviceSlots, 0);
    const double slots =
        query(path, "SELECT 1.0 * device_slots * layers * sequences * kv_heads * block_bytes FROM runs");
    EXPECT_DOUBLE_EQ(deviceKvBytes(run, summary), slots);
    run.deviceSlots = 0;
    EXPECT_TRUE(std::isnan(deviceKvBytes(run, summary))) << "a method may keep tokens by a rule of its own";
    run.budgetBlocks = 0;
    EXPECT_TRUE(std::isnan(deviceKvBytes(run, summary))) << "something was loaded";
    summary.misses = summary.h2dBytes = 0; // full attention
    const double tokens =
        query(path, "SELECT sum(s.tokens) * 1.0 / r.block_size * r.block_bytes * r.layers * r.kv_heads"
                    " FROM v_step s JOIN runs r USING (run_id)");
    EXPECT_DOUBLE_EQ(deviceKvBytes(run, summary), tokens);
    run.droppedSteps = 1; // their tokens are not in the trace
    EXPECT_TRUE(std::isnan(deviceKvBytes(run, summary)));
    run.droppedSteps = 0;
    run.knows = Knowledge::nothing().with(Known::StepTimes);
    EXPECT_TRUE(std::isnan(deviceKvBytes(run, summary))) << "0 slots say nothing of a run that does not know its hits";
}

TEST_F(RunNumbersTest, WhatIsNotKnownIsNoNumber) {
    const std::string path = recorded({.decodeSteps = 0});
    const RunSummary none = summaryOf(path);
    EXPECT_TRUE(std::isnan(h2dBytesPerToken(none)));
    RunNumbers numbers;
    const TraceReader reader(path);
    EXPECT_TRUE(extendRunNumbers(numbers, reader, reader.run(1).value(), 1));
    EXPECT_EQ(numbers.answer, "") << "no prompt asks for a fact";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
