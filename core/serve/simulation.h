// A serving run without an engine: arrivals and ends of iterations are events, the plans are the scheduler's own, and
// times come from the table of costs.
#pragma once

#include "core/serve/request_table.h"
#include "core/serve/scheduler.h"
#include "core/serve/serving_metrics.h"
#include "core/serve/workload.h"

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvscope::serve {

struct SimulationOptions {
    SchedulerOptions scheduler;
    ServiceCosts costs;
    Budget budget;            // rows are those of the scheduler
    int counted = 0;          // requests of the window; 0: as many as the workload has
    int warmUpRequests = 100; // that arrive before the window, at least
    double warmUpSeconds = 60;
    Slo slo;
    std::function<void()> between; // called every 4,096 iterations where there is one; what it throws ends the run
    bool keepGaps = true;          // off: no gaps between tokens are kept, for runs of very many requests
};

/// Percentiles of one latency, over its samples in ms.
struct Latency {
    std::size_t samples = 0;
    double mean = 0, median = 0, max = 0, p99 = 0; // p99 interpolated, however few samples there are
    std::vector<Percentile> shown;                 // P50, P90, P99, P99.9, where there are samples enough
};
Latency latencyOf(std::vector<double> samples);

struct SimulationResult {
    double offered = 0;                     // requests per second
    int warmUp = 0, counted = 0, after = 0; // requests that arrived before, in and after the window
    int mserWarmUp = 0;                     // requests of the window that MSER-5 on TTFT would have cut off besides
    double seconds = 0; // the window: from its first arrival to where the next one behind it arrives
    Latency queue, ttft, tbt, worstTbt, tpot, e2e; // worstTbt: of each request the P99 of its gaps
    int finished = 0, refused = 0, unfinished = 0, good = 0, pauses = 0, pausedLongerThanTbt = 0;
    double attainment = 0;  // good / counted
    double goodput = 0;     // good requests per second of the window
    double outputRate = 0;  // tokens made in the window, per second
    double busy = 0;        // share of the window in which an iteration ran
    double utilisation = 0; // work that arrives / what can be done: see utilisationOf
    Trend trend;
    double meanInSystem = 0, littleInSystem = 0; // integrated; arrivals per second times mean E2E
    std::int64_t iterations = 0;                 // in the window
    double meanRows = 0, meanIterationMs = 0, hitRate = 0, loadedBytes = 0; // of iterations of the window that decode
    std::array<std::int64_t, kLimits> limitedBy{};                          // iterations of the window
    double predictedError = 0;            // median of |predicted - simulated| / simulated over iterations
    std::vector<RequestOutcome> outcomes; // of the window, in the order of arrival

    /// Waiting times are given up to this utilisation: near saturation a small error of a cost changes them without
    /// bound.
    static constexpr double kPromised = 0.8;
    bool warmUpShort = false; // the warm-up lasted less than five mean E2E

    bool promisesTtft() const { return utilisation <= kPromised && !trend.grows(); }
};

/// The share of the server that the offered requests need: arrivals per second times the mean work of one, which is its
/// prefill and its tokens at the rate of the best batch that memory and rows allow. At 1 nothing can be sustained.
double utilisationOf(const Workload& workload, const SimulationOptions& options);

/// Reads the workload over and over: first the warm-up, then the window, then on until every request of the window has
/// ended, so that none is served under a falling load. `watch`, where given, sees every iteration: the table when it
/// has ended, its plan and its time in ms.
/// @throws Error(BadInput) for an empty workload
using WatchIteration = std::function<void(const RequestTable&, const IterationPlan&, double)>;
SimulationResult simulate(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch = {});

} // namespace kvscope::serve
