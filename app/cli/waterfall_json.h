// The waterfall of a run as JSON and as a table, for the commands roofline and insights.
#pragma once

#include "profiler/waterfall/waterfall.h"

#include <nlohmann/json_fwd.hpp>

namespace kvscope::cli {

/// One object: times, headline, bars with their places. Times in nanoseconds, as in the trace; numbers that are not
/// known are null.
nlohmann::ordered_json waterfallJson(const Waterfall& waterfall);

/// A line per bar on standard output.
void printWaterfall(const Waterfall& waterfall);

} // namespace kvscope::cli
