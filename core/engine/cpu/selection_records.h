// Writes the selections of a layer to the record of a step.
#pragma once

#include "core/select/head_step.h"
#include "core/trace/trace_sink.h"

#include <span>

namespace kvscope {

/// Appends to `record` the selections of every item that selected, adds their counts to `layer`, and keeps each
/// selection in the item's head, so that the next step can be compared with it.
void recordSelections(LayerId layerId, std::span<HeadStep> work, LayerRecord& layer, StepRecord& record);

} // namespace kvscope
