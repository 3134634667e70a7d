// How far back each layer looks: the distance of what it selects from the newest block, and whether that is what most
// of the attention falls on.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvscope {

/// Of the decode steps of one layer. Sink and window blocks are always attended and do not count in the distances.
struct LayerLookBack {
    int layer = 0;
    std::int64_t blocks = 0;            // that the layer chose
    double median = 0, ninety = 0;      // distance in tokens that half, nine of ten of them do not exceed
    double mean = 0;                    // tokens
    std::optional<double> mass, recall; // means, 0..1; absent: not recorded
};

/// By layer; only layers that choose blocks by themselves. The distance of a block is that to the newest block which
/// any layer of the same sequence has selected so far, in blocks, times their size; window blocks show which one that
/// is. Recall is recorded with the oracle: the share of the best blocks, those of the most attention mass, that were
/// selected. @throws Error(BadInput) if a selection is damaged, Error(Cancelled | Storage)
std::vector<LayerLookBack> readLookBack(const TraceReader& reader, const RunRow& run);

} // namespace kvscope
