// Which share of the blocks that a run selected would have been on the device, as curves for the simulator of a server
// (core/serve/service_costs.h). They come from recorded selections and replace the simulator's synthetic stream.
#pragma once

#include "profiler/replay/selection_trace.h"

#include <stop_token>
#include <utility>
#include <vector>

namespace kvscope {

struct HitCurves {
    /// One LRU pool for the device: share of hits by (blocks that a step selects / slots), ascending. Cold steps do not
    /// count: a simulator lets a row miss everything in its first step.
    std::vector<std::pair<double, double>> pool;
    /// A part of the device for each row, layer and KV head: share of hits by (slots / blocks of the largest
    /// selection), ascending from 1 on. A request's first selection does not count.
    std::vector<std::pair<double, double>> partition;
    double drift = 0; // share of a selection that the step before did not have
};

/// The curves of a run whose pools are separate. @throws Error(BadInput) where too few steps select, Error(Unsupported)
/// as DeviceRequests, Error(Cancelled)
HitCurves hitCurvesOf(const SelectionTrace& trace, const std::stop_token& stop = {});

} // namespace kvscope
