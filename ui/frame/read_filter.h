// Converts the shared filter to the filter with which the profiler reads.
#pragma once

#include "profiler/read/filtered.h"
#include "ui/frame/filter.h"

namespace kvscope::ui {

/// Converts only the parts (FilterPart, combined with |) that the view applies.
inline ReadFilter readFilter(const Filter& filter,
                             int parts = FilterLayers | FilterKvHeads | FilterSteps | FilterComponent | FilterText) {
    ReadFilter read;
    if (parts & FilterLayers) read.layers = filter.layers.ranges();
    if (parts & FilterKvHeads) read.kvHeads = filter.kvHeads.ranges();
    if (parts & FilterSteps) read.steps = filter.steps.ranges();
    if (parts & FilterText) read.text = filter.text.toStdString();
    if (parts & FilterComponent) read.component = filter.component.toStdString();
    return read;
}

} // namespace kvscope::ui
