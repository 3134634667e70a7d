// The part of a timeline where nearly everything happened. A few spans far from all others, such as one whose clock was
// never set, would leave all other spans a single pixel of the map and of the opening window.
#pragma once

#include "profiler/read/span_index.h"

#include <cstdint>

namespace kvscope::ui {

/// The time from the first span's start to the last one's end. A few spans at either end are left out if they are so
/// far away that most of the time would be empty.
struct BusyPart {
    std::int64_t fromNs = 0, toNs = 0;
    bool leavesOut = false; // there are such spans
};
BusyPart busyPart(const SpanIndex& index);

} // namespace kvscope::ui
