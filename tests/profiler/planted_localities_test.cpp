// The localities that --planted nosa-tiny stands for are those of the sample trace, by the query that docs/serving.md
// gives.
#include "core/plan/planted_selections.h"
#include "tests/profiler/sql_rows.h"
#include "tests/support/places.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(PlantedLocalities, OfNosaTinyAreThoseOfTheSampleTrace) {
    const test::SqlRows rows =
        test::sql(test::source("resources/samples/h200-nosa-tiny.kvtrace"),
                  "SELECT layer, round(avg(locality), 3) FROM v_locality WHERE run_id = 1 AND NOT opens_block GROUP BY "
                  "layer");
    const std::vector<double> list = plantedLocalities("nosa-tiny");
    ASSERT_EQ(rows.rows.size(), list.size());
    for (std::size_t layer = 0; layer < list.size(); ++layer)
        EXPECT_NEAR(std::stod(rows.rows[layer].at(1)), list[layer], 1e-6) << "layer " << layer;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
