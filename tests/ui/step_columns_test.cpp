#include "ui/plots/step_columns.h"

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST(StepColumns, GiveEveryStepToExactlyOnePixelWhenZoomedOut) {
    for (const int steps : {1000, 1601, 100'000}) {
        const auto columns = stepColumns(-0.5, steps - 0.5, 800, steps);
        int next = 0;
        for (const StepColumn& column : columns) {
            ASSERT_EQ(column.first, next);
            next = column.last;
        }
        EXPECT_EQ(next, steps);
    }
}

TEST(StepColumns, RepeatAStepOverItsPixelsWhenZoomedIn) {
    const auto columns = stepColumns(-0.5, 9.5, 100, 10);
    for (int x = 0; x < 100; ++x) {
        EXPECT_EQ(columns[std::size_t(x)].first, x / 10);
        EXPECT_EQ(columns[std::size_t(x)].last, x / 10 + 1);
    }
}

TEST(StepColumns, AreEmptyOutsideTheRun) {
    const auto columns = stepColumns(-10, 20, 30, 5);
    EXPECT_EQ(columns[0].first, columns[0].last);
    EXPECT_EQ(columns[29].first, columns[29].last);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
