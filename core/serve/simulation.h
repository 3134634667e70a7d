// A serving run without an engine: arrivals and ends of iterations are events, the plans are the scheduler's own, and
// times come from the table of costs.
#pragma once

#include "core/serve/request_table.h"
#include "core/serve/scheduler.h"
#include "core/serve/tally.h"
#include "core/serve/workload.h"

#include <functional>

namespace kvscope::serve {

struct SimulationOptions : WindowOptions {
    SchedulerOptions scheduler;
    ServiceCosts costs;
    Budget budget;                 // rows are those of the scheduler
    std::function<void()> between; // called every 4,096 iterations where there is one; what it throws ends the run
};

/// The share of the server that the offered requests need: arrivals per second times the mean work of one, which is its
/// prefill and its tokens at the rate of the best batch that memory and rows allow. At 1 nothing can be sustained.
double utilisationOf(const Workload& workload, const SimulationOptions& options);

/// Reads the workload over and over: first the warm-up, then the window, then on until every request of the window has
/// ended, so that none is served under a falling load. `watch`, where given, sees every iteration: the table when it
/// has ended, its plan and its time in ms.
/// @throws Error(BadInput) for an empty workload
using WatchIteration = std::function<void(const RequestTable&, const IterationPlan&, double)>;
ServingResult simulate(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch = {});

} // namespace kvscope::serve
