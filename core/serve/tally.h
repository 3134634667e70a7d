// The numbers of a serving run, simulated or measured: what happened to every request, and what is said of the window.
#pragma once

#include "core/serve/ledger.h"
#include "core/serve/serving_metrics.h"
#include "core/serve/workload.h"

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// Which requests count. The workload is read over and over: first the warm-up, then the window, then on until every
/// request of the window has ended, so that none is served under a falling load.
struct WindowOptions {
    int counted = 0;          // requests of the window; 0: as many as the workload has
    int warmUpRequests = 100; // that arrive before the window, at least
    double warmUpSeconds = 60;
    Slo slo;
    bool keepGaps = true; // off: no gaps between tokens are kept, for runs of very many requests
};

/// Percentiles of one latency, over its samples in ms.
struct Latency {
    std::size_t samples = 0;
    double mean = 0, median = 0, max = 0, p99 = 0; // p99 interpolated, however few samples there are
    std::vector<Percentile> shown;                 // P50, P90, P99, P99.9, where there are samples enough
};
Latency latencyOf(std::vector<double> samples);

struct ServingResult {
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
    bool measured = false;    // by an engine's clock; else simulated

    /// What was measured is told as it was.
    bool promisesTtft() const { return measured || (utilisation <= kPromised && !trend.grows()); }
};

/// Requests are named by their number in the order of arrival, from 0 on. Times are on one clock, which begins with the
/// first reading of the workload.
class Tally {
public:
    /// The workload must outlive this object. @throws Error(BadInput) for an empty one
    Tally(const Workload& workload, const WindowOptions& options);

    std::int64_t arrivalNs(std::int64_t request) const;
    const WorkloadLine& lineOf(std::int64_t request) const;
    /// Whether a request of the window has not ended.
    bool open() const { return open_ > 0; }
    /// The share of the window's requests that have ended.
    double done() const { return 1 - double(open_) / double(behind_ - first_); }

    /// The request has arrived; requests arrive in their order.
    void arrived(std::int64_t request);
    /// An iteration that works for it begins. Only the first one counts.
    void scheduled(std::int64_t request, std::int64_t ns);
    /// It has a token more; first: that of its prompt.
    void token(std::int64_t request, std::int64_t ns, int generated, bool first);
    void paused(std::int64_t request, std::int64_t ns);
    void resumed(std::int64_t request, std::int64_t ns);
    void ended(std::int64_t request, Status status, std::int64_t ns);

    struct Iteration {
        std::int64_t beginNs = 0, endNs = 0;
        double ms = 0, predictedMs = 0;
        Limit limitedBy = Limit::None;
        int decodeRows = 0;
        double missedBytes = 0, selectedBytes = 0;
    };
    void iteration(const Iteration& iteration);

    /// The numbers of the window, but utilisation. Once, at the end.
    ServingResult finish();

private:
    struct Served {
        RequestOutcome outcome;
        std::int64_t lastTokenNs = -1, pausedSinceNs = -1, longestPauseNs = 0;
    };
    bool counts(std::int64_t request) const { return request >= first_ && request < behind_; }
    bool inWindow(std::int64_t ns) const { return ns >= fromNs_ && ns < toNs_; }
    void integrateBacklog();

    const Workload& workload_;
    const WindowOptions options_;
    std::unordered_map<std::int64_t, Served> served_;
    std::vector<std::pair<std::int64_t, int>> changes_; // of the backlog
    std::vector<double> errors_;
    ServingResult result_;
    std::int64_t arrived_ = 0, first_ = 0, behind_ = 0, fromNs_ = 0, toNs_ = 0, busyNs_ = 0, tokens_ = 0, decodes_ = 0;
    double selectedBytes_ = 0;
    int open_ = 0;
};

} // namespace kvscope::serve
