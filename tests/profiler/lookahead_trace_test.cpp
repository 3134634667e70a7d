// What was fetched ahead: recorded beside its selection, absent where nothing was, added to older traces.
#include "profiler/read/lookahead.h"
#include "profiler/record/recorder.h"
#include "profiler/report/report.h"
#include "profiler/report/run_data.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(LookaheadTrace, HoldsWhatTheEngineSaid) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    const synthetic::RunShape shape;
    std::int64_t rows = 0, predicted = 0, used = 0, wasted = 0, late = 0;
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf(shape));
        int n = 0;
        for (const StepRecord& step : synthetic::stepsOf(shape, RecordLevel::Full)) {
            auto record = recorder.acquire();
            *record = step;
            for (SelectionRecord& s : record->selections) {
                if (s.layer == 0) continue; // nobody predicts the first layer
                s.predicted = s.selected + 2, s.used = s.selected, s.wasted = ++n % 3, s.late = n % 5;
                ++rows, predicted += s.predicted, used += s.used, wasted += s.wasted, late += s.late;
            }
            recorder.take(std::move(record));
        }
        recorder.endRun(RunStatus::Finished, "");
    }
    ASSERT_GT(rows, 100);
    const auto sums = test::sql(
        file, "SELECT count(*), sum(predicted), sum(used), sum(wasted), sum(late), min(layer) FROM v_lookahead"
              " WHERE run_id = 1");
    EXPECT_EQ(sums.rows[0],
              (std::vector<std::string>{std::to_string(rows), std::to_string(predicted), std::to_string(used),
                                        std::to_string(wasted), std::to_string(late), "1"}));
    // The same key as the selection: one of each, no row astray.
    const TraceReader reader(file);
    const auto totals = lookaheadTotals(reader, 1);
    ASSERT_TRUE(totals.has_value());
    EXPECT_EQ(totals->selections, rows);
    EXPECT_EQ(totals->predicted, predicted);
    EXPECT_EQ(totals->used, used);
    EXPECT_EQ(totals->wasted, wasted);
    EXPECT_EQ(totals->late, late);
    EXPECT_FALSE(totals->stale.has_value());
    const auto table = reports::keyNumbers(reports::readRuns({file}));
    const auto valueOf = [&](const std::string& name) {
        for (const auto& row : table.rows)
            if (std::get<std::string>(row[0].value) == name) return row[1].number();
        return -1.0;
    };
    EXPECT_EQ(valueOf("Blocks asked for ahead"), double(predicted));
    EXPECT_EQ(valueOf("Wasted, of those asked for ahead"), double(wasted));
    EXPECT_EQ(valueOf("Late, of those asked for ahead"), double(late));
    EXPECT_EQ(test::sql(file, "SELECT count(*) FROM v_lookahead a JOIN v_locality l USING (run_id, step, layer, seq,"
                              " kv_head) WHERE a.used = l.selected")
                  .rows[0][0],
              std::to_string(rows));
}

TEST(LookaheadTrace, IsEmptyForMethodsThatFetchOnDemand) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    EXPECT_EQ(test::sql(file, "SELECT count(*) FROM v_lookahead").rows[0][0], "0");
    EXPECT_FALSE(lookaheadTotals(TraceReader(file), 1).has_value());
}

TEST(LookaheadTrace, ATraceFromBeforeTakesANewRun) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    test::sql(file, "DROP VIEW v_lookahead; DROP TABLE lookahead", SQLITE_OPEN_READWRITE);
    EXPECT_FALSE(lookaheadTotals(TraceReader(file), 1).has_value());
    synthetic::recordFile(file, {});
    EXPECT_EQ(test::sql(file, "SELECT count(*) FROM runs").rows[0][0], "2");
    EXPECT_EQ(test::sql(file, "SELECT count(*) FROM v_lookahead").rows[0][0], "0");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
