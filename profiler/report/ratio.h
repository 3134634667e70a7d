// Numbers of a report that may not exist: a table shows them as a dash.
#pragma once

#include <limits>

namespace kvscope::reports {

inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// part / whole, or kUndefined where there is no whole.
inline double ratio(double part, double whole) { return whole > 0 ? part / whole : kUndefined; }

} // namespace kvscope::reports
