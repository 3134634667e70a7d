#include "ui/plots/step_columns.h"
#include "base/indexed.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

Numbered<StepColumn> stepColumns(double axisLower, double axisUpper, int pixels, int steps) {
    Numbered<StepColumn> columns(std::max(pixels, 0));
    const double perPixel = (axisUpper - axisLower) / std::max(pixels, 1);
    const auto stepAt = [&](int pixel) {
        return std::floor(axisLower + perPixel * pixel + 0.5 + 1e-9); // the step at the column's left edge
    };
    for (int i = 0; i < pixels; ++i) {
        const double left = stepAt(i), right = stepAt(i + 1);
        const double first = left, last = std::max(right, left + 1);
        auto& column = columns[i];
        column.first = int(std::clamp(first, 0.0, double(steps)));
        column.last = int(std::clamp(last, 0.0, double(steps)));
        if (column.last < column.first) column.last = column.first;
    }
    // Zoomed out, the axis may begin inside a step's cell. floor already counts that step to the first column.
    return columns;
}

} // namespace kvscope::ui
