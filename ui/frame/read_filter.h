// The shared filter as the profiler reads with it.
#pragma once

#include "profiler/read/filtered.h"
#include "ui/frame/filter.h"

namespace kvscope::ui {

/// Only the parts (FilterPart, or-ed) that a view applies.
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
