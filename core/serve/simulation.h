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

/// The share of the server that the offered requests need: arrivals per second times the mean work of a request, which
/// is its admission, its prefill, and its tokens at the rate of the best batch that memory and rows allow. From 1 on
/// the server cannot keep up.
double utilisationOf(const Workload& workload, const SimulationOptions& options);

/// Called at the end of every iteration with the table, the plan and the time in ms; may be empty.
using WatchIteration = std::function<void(const RequestTable&, const IterationPlan&, double)>;
/// Simulates a server. Reads the workload over and over: first the warm-up, then the window, and then on until every
/// request of the window has ended, so that all are served under the same load.
/// @throws Error(BadInput) for an empty workload
ServingResult simulate(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch = {});

} // namespace kvscope::serve
