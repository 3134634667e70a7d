// What the exact attention would have chosen: recorded beside its selection, absent without the oracle and in older
// traces.
#include "profiler/read/trace_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <cmath>
#include <gtest/gtest.h>
#include <sqlite3.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

bool anyDefined(const StepMatrix& matrix) {
    return std::any_of(matrix.values.begin(), matrix.values.end(), [](float value) { return !std::isnan(value); });
}

TEST(OracleTrace, HoldsARowForEverySelection) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::RunShape shape;
    shape.oracle = true;
    synthetic::recordFile(file, shape);
    std::int64_t rows = 0, near = 0;
    double recall = 0;
    for (const StepRecord& step : synthetic::stepsOf(shape, RecordLevel::Full))
        for (const SelectionRecord& s : step.selections)
            ++rows, near += std::isnan(s.farMass) ? 1 : 0, recall += s.recall;
    ASSERT_GT(rows, 100);
    const auto sums = test::sql(file, "SELECT count(*), count(*) - count(far_mass), count(*) - count(far_recall)"
                                      " FROM v_oracle WHERE run_id = 1");
    EXPECT_EQ(sums.rows[0],
              (std::vector<std::string>{std::to_string(rows), std::to_string(near), std::to_string(near)}));
    EXPECT_NEAR(std::stod(test::sql(file, "SELECT sum(recall) FROM v_oracle").rows[0][0]), recall, 1e-3);
    EXPECT_EQ(test::sql(file, "SELECT count(*) FROM v_oracle o JOIN v_locality l USING (run_id, step, layer, seq,"
                              " kv_head) WHERE o.mass = l.mass AND o.mass < o.best_mass")
                  .rows[0][0],
              std::to_string(rows));
}

TEST(OracleTrace, IsUndefinedWithoutTheOracleAndInATraceFromBefore) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::RunShape shape;
    synthetic::recordFile(file, shape);
    for (const Metric metric : {Metric::Recall, Metric::FarMass}) {
        EXPECT_FALSE(anyDefined(TraceReader(file).layerMatrix(1, metric)));
        EXPECT_FALSE(anyDefined(TraceReader(file).headMatrix(1, metric, 1)));
    }
    shape.oracle = true;
    synthetic::recordFile(file, shape);
    EXPECT_TRUE(anyDefined(TraceReader(file).layerMatrix(2, Metric::Recall)));
    EXPECT_TRUE(anyDefined(TraceReader(file).headMatrix(2, Metric::FarMass, 1)));
    test::sql(file, "DROP VIEW v_oracle; DROP TABLE oracle", SQLITE_OPEN_READWRITE);
    for (const Metric metric : {Metric::Recall, Metric::FarMass}) {
        EXPECT_FALSE(anyDefined(TraceReader(file).layerMatrix(2, metric)));
        EXPECT_FALSE(anyDefined(TraceReader(file).layerMatrix(2, metric, {0, 1})));
        EXPECT_FALSE(anyDefined(TraceReader(file).headMatrix(2, metric, 1)));
    }
    synthetic::recordFile(file, shape); // makes the table again
    EXPECT_TRUE(anyDefined(TraceReader(file).layerMatrix(3, Metric::Recall)));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
