#include "core/serve/tally.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>

namespace kvscope::serve {
namespace {

constexpr double kTallyMs = 1e6; // ns
/// How many requests may arrive behind the window before the window's own have ended. A server that gets so many will
/// not catch up, and the requests would fill the memory.
constexpr std::int64_t kMostBehind = 4'000'000;

} // namespace

Latency latencyOf(std::vector<double> samples) {
    Latency latency;
    latency.samples = samples.size();
    if (samples.empty()) return latency;
    std::sort(samples.begin(), samples.end());
    latency.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / double(samples.size());
    latency.median = percentile(samples, 0.5), latency.p99 = percentile(samples, 0.99), latency.max = samples.back();
    for (const double p : {0.5, 0.9, 0.99, 0.999})
        if (const auto shown = shownPercentile(samples, p)) latency.shown.push_back(*shown);
    return latency;
}

Tally::Tally(const Workload& workload, const WindowOptions& options) : workload_(workload), options_(options) {
    const auto lines = std::int64_t(workload_.lines.size());
    if (lines == 0) throw Error(ErrorKind::BadInput, "a workload without requests");
    // The window begins when the warm-up has lasted for as many requests, and for as many seconds, as the options say.
    const double warmUpNs = options_.warmUpSeconds * 1e9;
    const double counted = options_.counted > 0 ? options_.counted : double(lines);
    const double longestNs = warmUpNs + (double(options_.warmUpRequests) + counted + double(lines)) / double(lines) *
                                            double(workload_.spanUs) * 1e3;
    if (longestNs > double(kLongestNs))
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} requests at {:.3g} per second take more than 100 years", std::int64_t(counted),
                                workload_.rate()),
                    "give a larger rate, or count fewer requests");
    // whole readings of the workload that fit into the warm-up
    const auto readings = std::int64_t(warmUpNs / (double(workload_.spanUs) * 1e3));
    first_ = std::max(std::int64_t(options_.warmUpRequests), readings * lines);
    while (double(arrivalNs(first_)) < warmUpNs) ++first_;
    behind_ = first_ + (options_.counted > 0 ? options_.counted : lines);
    fromNs_ = arrivalNs(first_), toNs_ = arrivalNs(behind_);
    open_ = int(behind_ - first_);
    result_.outcomes.resize(open_);
}

std::int64_t Tally::arrivalNs(std::int64_t request) const {
    const auto lines = std::int64_t(workload_.lines.size());
    return (request / lines * workload_.spanUs + lineOf(request).arrivalUs) * 1000;
}

const WorkloadLine& Tally::lineOf(std::int64_t request) const {
    return workload_.lines[std::size_t(request % std::int64_t(workload_.lines.size()))];
}

void Tally::arrived(std::int64_t request) {
    if (request - behind_ > kMostBehind)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} requests arrived before {} of the {} that are counted had ended", request - first_,
                                open_, behind_ - first_),
                    "give a smaller rate, or costs with which the server is faster");
    Served served;
    served.outcome.id = request;
    served.outcome.arrivalNs = arrivalNs(request);
    served.outcome.promptTokens = lineOf(request).promptTokens;
    // A request that arrives during an iteration is noticed at the iteration's end, so changes are not in the order of
    // time. They are sorted at the end of the run.
    changes_.emplace_back(served.outcome.arrivalNs, 1);
    served_.emplace(request, std::move(served));
    ++arrived_;
}

void Tally::scheduled(std::int64_t request, std::int64_t ns) {
    RequestOutcome& outcome = served_.at(request).outcome;
    if (outcome.firstScheduledNs < 0) outcome.firstScheduledNs = ns;
}

void Tally::token(std::int64_t request, std::int64_t ns, int generated, bool first) {
    Served& served = served_.at(request);
    if (first)
        served.outcome.firstTokenNs = ns;
    else if (options_.keepGaps && counts(request))
        served.outcome.gapsMs.push_back(float(double(ns - served.lastTokenNs) / kTallyMs));
    served.lastTokenNs = ns;
    served.outcome.tokens = generated;
    tokens_ += inWindow(ns) ? 1 : 0;
}

void Tally::paused(std::int64_t request, std::int64_t ns) {
    Served& served = served_.at(request);
    ++served.outcome.pauses;
    served.pausedSinceNs = ns;
}

void Tally::resumed(std::int64_t request, std::int64_t ns) {
    Served& served = served_.at(request);
    const std::int64_t took = ns - served.pausedSinceNs;
    served.outcome.pausedNs += took;
    served.longestPauseNs = std::max(served.longestPauseNs, took);
    served.pausedSinceNs = -1;
}

void Tally::ended(std::int64_t request, Status status, std::int64_t ns) {
    Served& served = served_.at(request);
    served.outcome.endNs = ns;
    served.outcome.status = status;
    changes_.emplace_back(ns, -1);
    if (counts(request)) {
        --open_;
        if (double(served.longestPauseNs) / kTallyMs > options_.slo.tbtMs) ++result_.pausedLongerThanTbt;
        result_.outcomes[request - first_] = std::move(served.outcome);
    }
    served_.erase(request);
}

void Tally::iteration(const Iteration& iteration) {
    const std::int64_t from = std::max(iteration.beginNs, fromNs_), to = std::min(iteration.endNs, toNs_);
    if (to > from) busyNs_ += to - from;
    if (!inWindow(iteration.beginNs)) return;
    ++result_.iterations;
    ++result_.limitedBy[std::size_t(iteration.limitedBy)];
    errors_.push_back(std::abs(iteration.predictedMs - iteration.ms) / std::max(iteration.ms, 1e-9));
    if (iteration.decodeRows == 0) return;
    ++decodes_;
    result_.meanRows += iteration.decodeRows, result_.meanIterationMs += iteration.ms;
    result_.loadedBytes += iteration.missedBytes;
    selectedBytes_ += iteration.selectedBytes;
}

ServingResult Tally::finish() {
    ServingResult& r = result_;
    r.seconds = double(toNs_ - fromNs_) / 1e9;
    r.offered = workload_.rate();
    r.warmUp = int(first_), r.counted = int(behind_ - first_), r.after = int(arrived_ - behind_);
    std::vector<double> queue, ttft, tbt, worst, tpot, e2e;
    for (const RequestOutcome& o : r.outcomes) {
        if (o.firstScheduledNs >= 0) queue.push_back(o.queueMs());
        r.pauses += o.pauses;
        r.good += isGood(o, options_.slo) ? 1 : 0;
        ++(o.status == Status::Finished ? r.finished : o.status == Status::Refused ? r.refused : r.unfinished);
        if (o.status != Status::Finished) continue;
        ttft.push_back(o.ttftMs()), e2e.push_back(o.e2eMs());
        if (o.gapsMs.empty()) continue;
        std::vector<double> gaps(o.gapsMs.begin(), o.gapsMs.end());
        tbt.insert(tbt.end(), gaps.begin(), gaps.end());
        std::sort(gaps.begin(), gaps.end());
        worst.push_back(percentile(gaps, 0.99));
        tpot.push_back(*o.tpotMs());
    }
    r.mserWarmUp = warmUpByMser5(ttft);
    r.queue = latencyOf(std::move(queue)), r.ttft = latencyOf(std::move(ttft)), r.tbt = latencyOf(std::move(tbt));
    r.worstTbt = latencyOf(std::move(worst)), r.tpot = latencyOf(std::move(tpot)), r.e2e = latencyOf(std::move(e2e));
    r.attainment = double(r.good) / r.counted;
    r.goodput = r.good / r.seconds;
    r.outputRate = double(tokens_) / r.seconds;
    r.busy = double(busyNs_) / 1e9 / r.seconds;
    r.warmUpShort = double(fromNs_) / 1e6 < 5 * r.e2e.mean;
    integrateBacklog();
    if (decodes_ > 0) r.meanRows /= double(decodes_), r.meanIterationMs /= double(decodes_);
    r.hitRate = selectedBytes_ > 0 ? 1 - r.loadedBytes / selectedBytes_ : 1;
    std::sort(errors_.begin(), errors_.end());
    if (!errors_.empty()) r.predictedError = percentile(errors_, 0.5);
    return std::move(result_);
}
void Tally::integrateBacklog() {
    std::stable_sort(changes_.begin(), changes_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    Backlog backlog;
    int requests = 0;
    for (const auto& [ns, by] : changes_) {
        requests += by;
        if (!backlog.ns.empty() && backlog.ns.back() == ns) {
            backlog.requests.back() = requests;
            continue;
        }
        backlog.ns.push_back(ns), backlog.requests.push_back(requests);
    }
    result_.trend = trendOf(backlog, fromNs_, toNs_);
    result_.meanInSystem = backlog.mean(fromNs_, toNs_);
    double inside = 0; // refused requests are among the outcomes: they were in the system for a moment
    for (const RequestOutcome& o : result_.outcomes) inside += o.e2eMs() / 1e3;
    result_.littleInSystem = inside / result_.seconds;
}

} // namespace kvscope::serve
