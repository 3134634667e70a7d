// The values at which the colours of a heatmap begin and end.
#pragma once

#include "profiler/read/trace_reader.h"
#include "profiler/tiles/step_pyramid.h"

namespace kvscope::ui {

enum class ColourRange {
    Natural, // the range that the metric has by nature, such as 0 to 1; if it has none, from 0 to the highest cell,
             // without a few that stand out
    Data,    // lowest to highest cell
    Robust   // first to 99th percentile of the cells
};

struct ColourScale {
    double low = 0, high = 1;         // colours end here
    double smallest = 0, largest = 0; // of the decode steps' cells
    bool clipsBelow() const { return smallest < low; }
    bool clipsAbove() const { return largest > high; }
};

/// The colours for the decode steps. A prefill takes thousands of times longer than a step and would leave one colour
/// for all of them.
ColourScale colourScale(const StepPyramid& data, const MetricInfo& metric, ColourRange range);

} // namespace kvscope::ui
