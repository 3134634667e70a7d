// SparseServe's ladder: what each part of the system adds to a server with full attention and resident keys and values
// (its Figure 13), and one rung of our own.
#pragma once

#include "core/serve/service_costs.h"

#include <string>
#include <vector>

namespace kvscope::serve {

/// One configuration of the ladder. A rung keeps everything that the rung before it added.
struct Rung {
    const char* name;
    const char* adds; // in words
    bool sparse;      // false: full attention
    bool offload;
    CachePlan cache;
    TransferPlan transfers;
    bool workingSetControl;
    PrefillPlan prefill;
};

/// From full attention upwards.
const std::vector<Rung>& rungs();
/// "all", or names separated by commas; in the order of the ladder. @throws Error(BadInput) for a name that no rung has
std::vector<Rung> rungsNamed(const std::string& names);
/// The keys of the knobs that a rung decides.
const std::vector<std::string>& knobsOfRungs();
/// `base` with the knobs that the rung decides. A part of the device is as large as what a step selects, unless
/// partition_blocks of `base` says more.
SchedulerOptions onRung(const Rung& rung, SchedulerOptions base);
/// `sparse` is the table of the sparse method. @return that table, or for a rung with full attention the same engine
/// where a step reads all keys and values and there is no index
ServiceCosts costsOnRung(const Rung& rung, const ServiceCosts& sparse);

} // namespace kvscope::serve
