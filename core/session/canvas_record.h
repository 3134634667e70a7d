// What a forward over a canvas leaves in a record for a KV head that chose something, the same for every backend.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>
#include <span>

namespace kvscope {

/// What was chosen for a KV head: the tokens that were kept, the tiles of the masks, or the tokens that were computed.
struct CanvasChosen {
    std::span<const std::int32_t> ids; // ascending
    std::uint64_t active = 0;          // as DenoiseLayer has it
    float density = 0;
    int kept = -1; // of the ids, those of the forward before; -1: there is none to compare with
};

/// Adds the KV head's row of the trace and its selection to the record, and the selection to the layer's sums. row:
/// with layer, sequence and KV head.
void recordChosen(DenoiseLayer row, const CanvasChosen& chosen, StepRecord& record);

/// Adds how much the values of a block's tokens changed to the record, for the row.
void recordChanges(std::span<const float> changes, DenoiseLayer& row, StepRecord& record);

} // namespace kvscope
