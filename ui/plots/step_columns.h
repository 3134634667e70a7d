// Which steps each pixel column of a plot stands for.
#pragma once

#include <vector>

namespace kvscope::ui {

/// Steps [first, last) of a pixel column; first == last: no step there.
struct StepColumn {
    int first = 0, last = 0;
    bool operator==(const StepColumn&) const = default;
};

/// A step s covers [s - 0.5, s + 0.5) of the axis. Zoomed out, every step belongs to exactly one column, so that
/// nothing is dropped and nothing counted twice; zoomed in, neighbouring columns show the same step.
std::vector<StepColumn> stepColumns(double axisLower, double axisUpper, int pixels, int steps);

} // namespace kvscope::ui
