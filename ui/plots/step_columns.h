// Computes which steps each pixel column of a plot shows.
#pragma once

#include "base/indexed.h"

namespace kvscope::ui {

constexpr double kCellGapFrom = 7; ///< logical pixels; cells of at least this size are separated by a gap

/// A pixel column shows the steps [first, last); if first == last, it shows none.
struct StepColumn {
    int first = 0, last = 0;
    bool operator==(const StepColumn&) const = default;
};

/// Distributes steps over pixel columns. A step s covers [s - 0.5, s + 0.5) of the axis. Zoomed out, every step belongs
/// to exactly one column, so that no step is left out or counted twice; zoomed in, neighbouring columns show the same
/// step.
Numbered<StepColumn> stepColumns(double axisLower, double axisUpper, int pixels, int steps);

} // namespace kvscope::ui
