// The self times of a stretch of time as text.
#pragma once

#include "profiler/read/self_time.h"
#include "ui/frame/filter.h"
#include "ui/frame/trace_numbers.h"

#include <QString>

#include <cstddef>
#include <vector>

namespace kvscope::ui {

/// A header line, and below it a line for each name. separator: a comma, which quotes names that need it, or a tab.
QString selfTimesText(const std::vector<SelfTime>& rows, double rangeNs, QChar separator);

/// Self times over the part's range, which the writer reads from the trace: for a view that has not read or sorted all
/// of it. The writer throws Error(OutOfMemory) when the range's spans take more than `memoryLimit` bytes. @pre
/// part.range
NumberWriter selfTimesOf(const TracePart& part, SelfTimeBy by, const Filter& filter, std::size_t memoryLimit);

} // namespace kvscope::ui
