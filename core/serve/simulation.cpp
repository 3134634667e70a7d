#include "core/serve/simulation.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

namespace kvscope::serve {
namespace {

constexpr double kMs = 1e6; // ns

struct Served {
    RequestOutcome outcome;
    std::int64_t lastTokenNs = -1, pausedSinceNs = -1, longestPauseNs = 0;
    int outputTokens = 1, steps = 0;
};

/// One run of simulate().
class Run {
public:
    Run(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch)
        : workload_(workload), options_(options), watch_(watch), scheduler_(options.scheduler, options.costs),
          table_(budgetOf(options)) {}

    SimulationResult make() {
        const auto lines = std::int64_t(workload_.lines.size());
        if (lines == 0) throw Error(ErrorKind::BadInput, "a workload without requests");
        // The window begins when both are over: so many requests, and so many seconds.
        const double warmUpNs = options_.warmUpSeconds * 1e9;
        const auto readings = std::int64_t(warmUpNs / (double(workload_.spanUs) * 1e3)); // whole ones of the workload
        first_ = std::max(std::int64_t(options_.warmUpRequests), readings * lines);
        while (double(arrivalNs(first_)) < warmUpNs) ++first_;
        behind_ = first_ + (options_.counted > 0 ? options_.counted : lines);
        fromNs_ = arrivalNs(first_), toNs_ = arrivalNs(behind_);
        open_ = int(behind_ - first_);
        result_.outcomes.resize(std::size_t(open_));
        for (std::int64_t turn = 1; open_ > 0; ++turn) {
            advance();
            if (options_.between && turn % 4096 == 0) options_.between();
        }
        return finish();
    }

private:
    static Budget budgetOf(const SimulationOptions& options) {
        Budget budget = options.budget;
        budget.rows = options.scheduler.rows;
        budget.workingSetControl = options.scheduler.workingSetControl;
        return budget;
    }
    /// The workload is read over and over.
    std::int64_t arrivalNs(std::int64_t request) const {
        const auto lines = std::int64_t(workload_.lines.size());
        return (request / lines * workload_.spanUs + lineOf(request).arrivalUs) * 1000;
    }
    const WorkloadLine& lineOf(std::int64_t request) const {
        return workload_.lines[std::size_t(request % std::int64_t(workload_.lines.size()))];
    }
    bool counts(std::int64_t request) const { return request >= first_ && request < behind_; }
    bool inWindow(std::int64_t ns) const { return ns >= fromNs_ && ns < toNs_; }

    void advance() {
        if (table_.idle() && now_ < arrivalNs(arrived_)) now_ = arrivalNs(arrived_);
        while (arrivalNs(arrived_) <= now_) arrive(arrived_++);
        scheduler_.plan(table_.snapshot(now_, hitRate_), plan_);
        for (const Refusal& refusal : plan_.refused) end(refusal.request.id, Status::Refused, now_);
        const double simulated = plan_.empty() ? 0 : costOf(plan_);
        for (const Member& member : plan_.paused) pause(served_.at(member.id));
        for (const Member& member : plan_.resumed) resume(served_.at(member.id));
        table_.begin(plan_, now_);
        for (const PrefillSegment& segment : plan_.segments) {
            RequestOutcome& outcome = served_.at(segment.id).outcome;
            if (outcome.firstScheduledNs < 0) outcome.firstScheduledNs = now_;
        }
        if (plan_.empty()) {
            // Whoever waits gets work at once unless something runs, so nothing is left but what may arrive.
            if (!table_.idle()) throw std::logic_error("the scheduler has requests and no work");
            return;
        }
        const std::int64_t began = now_;
        now_ += std::max<std::int64_t>(1, std::int64_t(std::llround(simulated * kMs)));
        count(began, simulated);
        for (const RequestTable::Token& token : table_.end(plan_, now_)) take(token);
        for (const RequestId id : ended_) table_.finish(id), end(id, Status::Finished, now_);
        ended_.clear();
        if (watch_) watch_(table_, plan_, simulated);
    }

    void arrive(std::int64_t number) {
        const WorkloadLine& line = lineOf(number);
        const MemoryShape& shape = options_.costs.shape;
        ServeRequest request;
        request.id = number;
        request.queuedNs = arrivalNs(number);
        request.promptTokens = line.promptTokens, request.maxTokens = line.outputTokens;
        request.needs = shape.needsOf(options_.scheduler, line.promptTokens, line.outputTokens);
        request.workingSetBytes =
            shape.firstWorkingSet(options_.scheduler, std::int64_t(line.promptTokens) + line.outputTokens);
        Served served;
        served.outcome.id = number;
        served.outcome.arrivalNs = request.queuedNs;
        served.outcome.promptTokens = line.promptTokens;
        served.outputTokens = line.outputTokens;
        served_.emplace(number, std::move(served));
        table_.arrive(request);
        changeBacklog(request.queuedNs, 1);
    }

    /// What the plan takes by the table of costs, with the hits that its own rows have.
    double costOf(const IterationPlan& plan) {
        std::int64_t context = 0, warm = 0, cold = 0;
        const auto add = [&](const ServeRequest& request, bool isCold) {
            context += request.promptTokens + request.generated;
            (isCold ? cold : warm) += request.needs.stepBytes;
        };
        for (const Member& member : plan.decode) {
            const ServeRequest& request = table_.running()[std::size_t(member.index)];
            add(request, request.cold);
        }
        for (const Member& member : plan.resumed) add(table_.paused()[std::size_t(member.index)], true);
        const ServiceCosts& costs = options_.costs;
        const double hits = costs.hitRate(options_.scheduler, warm + cold, plan.availableBytes);
        misses_ = cold + std::int64_t(std::ceil((1 - hits) * double(warm)));
        selected_ = warm + cold;
        if (warm > 0) hitRate_ += 0.1 * (hits - hitRate_); // what the scheduler expects next
        double ms = costs.decode(plan.decodeRows(), context, misses_, options_.scheduler.transfers) + costs.overhead();
        for (const PrefillSegment& segment : plan.segments) ms += segment.ms;
        return ms;
    }

    void pause(Served& served) {
        ++served.outcome.pauses;
        served.pausedSinceNs = now_;
    }
    void resume(Served& served) {
        const std::int64_t took = now_ - served.pausedSinceNs;
        served.outcome.pausedNs += took;
        served.longestPauseNs = std::max(served.longestPauseNs, took);
        served.pausedSinceNs = -1;
    }

    void take(const RequestTable::Token& token) {
        Served& served = served_.at(token.id);
        if (token.first)
            served.outcome.firstTokenNs = now_;
        else if (options_.keepGaps && counts(token.id))
            served.outcome.gapsMs.push_back(float(double(now_ - served.lastTokenNs) / kMs));
        served.lastTokenNs = now_;
        served.outcome.tokens = token.generated;
        tokens_ += inWindow(now_) ? 1 : 0;
        if (token.generated >= served.outputTokens) {
            ended_.push_back(token.id);
        } else if (!token.first) {
            const auto context = std::int64_t(served.outcome.promptTokens) + token.generated;
            table_.setWorkingSet(token.id, options_.costs.workingSet(options_.scheduler, ++served.steps, context));
        }
    }

    void end(RequestId id, Status status, std::int64_t ns) {
        Served& served = served_.at(id);
        served.outcome.endNs = ns;
        served.outcome.status = status;
        changeBacklog(ns, -1);
        if (counts(id)) {
            --open_;
            if (double(served.longestPauseNs) / kMs > options_.slo.tbtMs) ++result_.pausedLongerThanTbt;
            result_.outcomes[std::size_t(id - first_)] = std::move(served.outcome);
        }
        served_.erase(id);
    }

    // Requests arrive in the middle of an iteration and are noticed at its end; the list is put in order at the end.
    void changeBacklog(std::int64_t ns, int by) { changes_.emplace_back(ns, by); }

    void count(std::int64_t began, double ms) {
        const std::int64_t from = std::max(began, fromNs_), to = std::min(now_, toNs_);
        if (to > from) busyNs_ += to - from;
        if (!inWindow(began)) return;
        ++result_.iterations;
        ++result_.limitedBy[std::size_t(plan_.limitedBy)];
        errors_.push_back(std::abs(plan_.predictedMs - ms) / std::max(ms, 1e-9));
        if (plan_.decodeRows() == 0) return;
        ++decodes_;
        result_.meanRows += plan_.decodeRows(), result_.meanIterationMs += ms;
        result_.loadedBytes += double(misses_);
        selectedBytes_ += double(selected_);
    }

    SimulationResult finish() {
        SimulationResult& r = result_;
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
        r.worstTbt = latencyOf(std::move(worst)), r.tpot = latencyOf(std::move(tpot)),
        r.e2e = latencyOf(std::move(e2e));
        r.attainment = double(r.good) / r.counted;
        r.goodput = r.good / r.seconds;
        r.outputRate = double(tokens_) / r.seconds;
        r.busy = double(busyNs_) / 1e9 / r.seconds;
        r.utilisation = utilisationOf(workload_, options_);
        r.warmUpShort = double(fromNs_) / 1e6 < 5 * r.e2e.mean;
        integrateBacklog();
        if (decodes_ > 0) r.meanRows /= double(decodes_), r.meanIterationMs /= double(decodes_);
        r.hitRate = selectedBytes_ > 0 ? 1 - r.loadedBytes / selectedBytes_ : 1;
        std::sort(errors_.begin(), errors_.end());
        if (!errors_.empty()) r.predictedError = percentile(errors_, 0.5);
        return std::move(result_);
    }
    void integrateBacklog() {
        std::stable_sort(changes_.begin(), changes_.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
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
        double inside = 0; // refused requests were in the system for a moment too
        for (const RequestOutcome& o : result_.outcomes) inside += o.e2eMs() / 1e3;
        result_.littleInSystem = inside / result_.seconds;
    }

    const Workload& workload_;
    const SimulationOptions& options_;
    const WatchIteration& watch_;
    const Scheduler scheduler_;
    RequestTable table_;
    IterationPlan plan_;
    std::unordered_map<RequestId, Served> served_;
    std::vector<RequestId> ended_;
    std::vector<std::pair<std::int64_t, int>> changes_;
    std::vector<double> errors_;
    SimulationResult result_;
    std::int64_t now_ = 0, arrived_ = 0, first_ = 0, behind_ = 0, fromNs_ = 0, toNs_ = 0, busyNs_ = 0, tokens_ = 0;
    std::int64_t misses_ = 0, selected_ = 0, decodes_ = 0;
    double hitRate_ = 0.9, selectedBytes_ = 0;
    int open_ = 0;
};

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

double utilisationOf(const Workload& workload, const SimulationOptions& options) {
    const ServiceCosts& costs = options.costs;
    const SchedulerOptions& scheduler = options.scheduler;
    double prefillMs = 0, tokens = 0, deviceBytes = 0, hostBytes = 0, stepBytes = 0, workingSets = 0, context = 0;
    const auto n = double(workload.lines.size());
    for (const WorkloadLine& line : workload.lines) {
        const RequestNeeds needs = costs.shape.needsOf(scheduler, line.promptTokens, line.outputTokens);
        const std::int64_t length = std::int64_t(line.promptTokens) + line.outputTokens;
        prefillMs += costs.prefillAll(line.promptTokens) / n;
        tokens += (line.outputTokens - 1) / n; // the first one comes from the prefill
        // Of the requests that decode together long answers are more.
        const double share = line.outputTokens;
        deviceBytes += double(needs.deviceBytes) * share, hostBytes += double(needs.hostBytes) * share;
        stepBytes += double(needs.stepBytes) * share, context += double(length) * share;
        workingSets +=
            share * double(scheduler.workingSetControl ? costs.workingSet(scheduler, scheduler.window, length)
                                                       : needs.hardBytes);
    }
    double weight = 0;
    for (const WorkloadLine& line : workload.lines) weight += line.outputTokens;
    deviceBytes /= weight, hostBytes /= weight, stepBytes /= weight, workingSets /= weight, context /= weight;
    double rows = scheduler.rows;
    const double each = deviceBytes + workingSets;
    if (each > 0) rows = std::min(rows, double(options.budget.device) / each);
    if (hostBytes > 0) rows = std::min(rows, double(options.budget.host) / hostBytes);
    // Of all batches that fit the one that makes most tokens per second.
    double perToken = std::numeric_limits<double>::infinity();
    for (int batch = 1; batch <= std::max(1, int(rows)); ++batch) {
        const auto available = options.budget.device - std::int64_t(deviceBytes) * batch;
        const auto selected = std::int64_t(stepBytes) * batch;
        const double misses = (1 - costs.hitRate(scheduler, selected, available)) * double(selected);
        const double step =
            costs.decode(batch, std::int64_t(context) * batch, std::int64_t(misses), scheduler.transfers);
        perToken = std::min(perToken, (step + costs.overhead()) / batch);
    }
    return workload.rate() * (prefillMs + tokens * perToken) / 1e3;
}

SimulationResult simulate(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch) {
    return Run(workload, options, watch).make();
}

} // namespace kvscope::serve
