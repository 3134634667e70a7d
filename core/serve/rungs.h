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

/// All rungs, beginning with full attention.
const std::vector<Rung>& rungs();
/// The rungs that `names` lists: "all", or names separated by commas. The result is in the order of the ladder. @throws
/// Error(BadInput) for a name that no rung has
std::vector<Rung> rungsNamed(const std::string& names);
/// The keys of the knobs whose values a rung gives.
const std::vector<std::string>& knobsOfRungs();
/// `base`, with the rung's values for the knobs that it decides. A partition gets as many slots as a step selects,
/// unless partition_blocks of `base` asks for more.
SchedulerOptions onRung(const Rung& rung, SchedulerOptions base);
/// `sparse` is the table of the sparse method. @return that table; for a rung with full attention, the table of the
/// same engine when a step reads all keys and values and has no index
ServiceCosts costsOnRung(const Rung& rung, const ServiceCosts& sparse);

} // namespace kvscope::serve
