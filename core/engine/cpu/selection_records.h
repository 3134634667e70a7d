// What a layer's selections leave in the record of a step.
#pragma once

#include "core/select/head_step.h"
#include "core/trace/trace_sink.h"

#include <span>

namespace kvscope {

/// Appends the selections of every item that selected to `record`, adds their counts to `layer`, and remembers in each
/// item's head what the next step is compared with.
void recordSelections(int layerIndex, std::span<HeadStep> work, LayerRecord& layer, StepRecord& record);

} // namespace kvscope
