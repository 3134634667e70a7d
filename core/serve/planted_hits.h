// What planted selections find on the device.
#pragma once

#include "core/serve/service_costs.h"
#include "core/serve/workload.h"

namespace kvscope::serve {

/// Gives a table of costs the curves of hits of selections of which a share `drift` is new in each step, drawn evenly
/// from the blocks of the context that the step before did not have. Slots beyond a selection hold the blocks that were
/// chosen last, so that of K selected blocks, C slots and a context of N blocks a share (C - K) / (N - K) of the new
/// ones is still there. Contexts are those of the workload, half of an answer written, weighted by the answers'
/// lengths. A pool of fewer slots than one step selects keeps its curve: nearly everything misses, whatever is drawn.
void plantHits(ServiceCosts& costs, double drift, const Workload& workload);

} // namespace kvscope::serve
