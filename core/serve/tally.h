// Collects the numbers of a serving run, simulated or measured: what became of every request, and the sums of the
// window.
#pragma once

#include "base/indexed.h"
#include "core/serve/ledger.h"
#include "core/serve/serving_metrics.h"
#include "core/serve/workload.h"

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// Which requests count. The workload is read over and over: first the warm-up, then the window, and then on until
/// every request of the window has ended, so that all are served under the same load.
struct WindowOptions {
    int counted = 0;          // requests of the window; 0: as many as the workload has
    int warmUpRequests = 100; // at least as many requests arrive before the window
    double warmUpSeconds = 60;
    Slo slo;
    bool keepGaps = true; // off: no gaps between tokens are kept, for runs of very many requests
};

/// Percentiles of one latency, over its samples in ms.
struct Latency {
    std::size_t samples = 0;
    double mean = 0, median = 0, max = 0, p99 = 0; // p99 is interpolated, even from few samples
    std::vector<Percentile> shown;                 // P50, P90, P99, P99.9, where there are samples enough
};
/// The numbers of these samples; all are 0 without samples.
Latency latencyOf(std::vector<double> samples);

struct ServingResult {
    double offered = 0;                     // requests per second
    int warmUp = 0, counted = 0, after = 0; // requests that arrived before, in and after the window
    // how many requests of the window MSER-5 on TTFT would have added to the warm-up
    int mserWarmUp = 0;
    double seconds = 0; // length of the window, from its first arrival to the first arrival behind it
    Latency queue, ttft, tbt, worstTbt, tpot, e2e; // worstTbt: the P99 of each request's gaps
    int finished = 0, refused = 0, unfinished = 0, good = 0, pauses = 0, pausedLongerThanTbt = 0;
    double attainment = 0;  // good / counted
    double goodput = 0;     // good requests per second of the window
    double outputRate = 0;  // tokens made in the window, per second
    double busy = 0;        // share of the window in which an iteration ran
    double utilisation = 0; // offered work by possible work, see utilisationOf
    Trend trend;
    double meanInSystem = 0, littleInSystem = 0; // integrated; arrivals per second times mean E2E
    std::int64_t iterations = 0;                 // in the window
    // of the iterations of the window that decode
    double meanRows = 0, meanIterationMs = 0, hitRate = 0, loadedBytes = 0;
    std::array<std::int64_t, kLimits> limitedBy{}; // iterations of the window
    double predictedError = 0;                     // median of |predicted - simulated| / simulated over iterations
    Numbered<RequestOutcome> outcomes;             // of the window, in the order of arrival

    /// Waiting times are stated up to this utilisation. Nearer to saturation a small error in the costs changes them
    /// without bound.
    static constexpr double kPromised = 0.8;
    bool warmUpShort = false; // the warm-up lasted less than five times the mean E2E
    bool measured = false;    // by an engine's clock; false: simulated

    /// Whether the run's TTFT may be stated. A measured one always is.
    bool promisesTtft() const { return measured || (utilisation <= kPromised && !trend.grows()); }
};

/// The longest time that a run may take on its clock: 100 years. Behind it the clock's nanoseconds would overflow.
inline constexpr std::int64_t kLongestNs = std::int64_t(100 * 365) * 86'400 * 1'000'000'000;

/// Requests are named by numbers in the order of arrival, from 0 on. All times are on one clock, which begins with the
/// first reading of the workload.
class Tally {
public:
    /// The workload must outlive this object. @throws Error(BadInput) for an empty one, and for a window that ends
    /// later than kLongestNs
    Tally(const Workload& workload, const WindowOptions& options);

    std::int64_t arrivalNs(std::int64_t request) const;
    const WorkloadLine& lineOf(std::int64_t request) const;
    /// Whether a request of the window has not ended.
    bool open() const { return open_ > 0; }
    /// The share of the window's requests that have ended.
    double done() const { return 1 - double(open_) / double(behind_ - first_); }

    /// The request has arrived; requests arrive in their order. @throws Error(BadInput) where so many have arrived
    /// behind the window that the server will never answer them
    void arrived(std::int64_t request);
    /// An iteration that works for the request begins. Only the first call for a request counts.
    void scheduled(std::int64_t request, std::int64_t ns);
    /// The request has one more token; first: the token that its prompt makes.
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

    /// Computes the numbers of the window, except utilisation. Called once, at the end.
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
