#include "core/serve/simulation.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <stdexcept>
#include <utility>

namespace kvscope::serve {
namespace {

constexpr double kMs = 1e6; // ns

/// One run of simulate().
class Run {
public:
    Run(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch)
        : workload_(workload), options_(options), watch_(watch), scheduler_(options.scheduler, options.costs),
          table_(budgetOf(options)), tally_(workload, options) {}

    ServingResult make() {
        for (std::int64_t turn = 1; tally_.open(); ++turn) {
            advance();
            if (options_.between && turn % 4096 == 0) options_.between();
        }
        ServingResult result = tally_.finish();
        result.utilisation = utilisationOf(workload_, options_);
        return result;
    }

private:
    static Budget budgetOf(const SimulationOptions& options) {
        Budget budget = options.budget;
        budget.rows = options.scheduler.rows;
        budget.workingSetControl = options.scheduler.workingSetControl;
        return budget;
    }
    void advance() {
        pass(std::exchange(betweenMs_, 0), "the time between two iterations");
        if (table_.idle() && now_ < tally_.arrivalNs(arrived_)) now_ = tally_.arrivalNs(arrived_);
        const std::int64_t before = arrived_;
        while (tally_.arrivalNs(arrived_) <= now_) arrive(arrived_++);
        pass(double(arrived_ - before) * options_.costs.requestMs, "taking requests in");
        scheduler_.plan(table_.snapshot(now_, hitRate_), plan_);
        for (const Refusal& refusal : plan_.refused) tally_.ended(refusal.request.id, Status::Refused, now_);
        const double simulated = plan_.empty() ? 0 : costOf(plan_);
        for (const Member& member : plan_.paused) tally_.paused(member.id, now_);
        for (const Member& member : plan_.resumed) tally_.resumed(member.id, now_);
        table_.begin(plan_, now_);
        for (const PrefillSegment& segment : plan_.segments) tally_.scheduled(segment.id, now_);
        if (plan_.empty()) {
            // A waiting request gets work at once unless something runs. So no request is left, and the next event is
            // an arrival.
            if (!table_.idle()) throw std::logic_error("the scheduler has requests and no work");
            return;
        }
        const std::int64_t began = now_;
        pass(std::max(simulated, 1 / kMs), "an iteration");
        tally_.iteration({began, now_, simulated, plan_.predictedMs, plan_.limitedBy, plan_.decodeRows(),
                          double(misses_), double(selected_)});
        for (const RequestTable::Token& token : table_.end(plan_, now_)) take(token);
        betweenMs_ = options_.costs.between(plan_.decodeRows()) + double(ended_.size()) * options_.costs.requestMs;
        for (const RequestId id : ended_) table_.finish(id), tally_.ended(id, Status::Finished, now_);
        ended_.clear();
        if (watch_) watch_(table_, plan_, simulated);
    }

    /// Moves the clock on by the time that `what` took.
    void pass(double ms, const char* what) {
        if (ms * kMs > double(kLongestNs - now_))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} of {:.3g} ms takes the simulated clock beyond 100 years", what, ms),
                        "give costs with which the server is faster");
        now_ += std::llround(ms * kMs);
    }

    void arrive(std::int64_t number) {
        const WorkloadLine& line = tally_.lineOf(number);
        const MemoryShape& shape = options_.costs.shape;
        ServeRequest request;
        request.id = number;
        request.queuedNs = tally_.arrivalNs(number);
        request.promptTokens = line.promptTokens, request.maxTokens = line.outputTokens;
        request.needs = shape.needsOf(options_.scheduler, line.promptTokens, line.outputTokens);
        request.workingSetBytes =
            shape.firstWorkingSet(options_.scheduler, std::int64_t(line.promptTokens) + line.outputTokens);
        table_.arrive(request);
        tally_.arrived(number);
    }

    /// Time of the plan by the table of costs, with the share of hits that the plan's own rows have.
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
        double ms = costs.decode(plan.decodeRows(), context, misses_, options_.scheduler) +
                    costs.overhead(plan.decodeRows()) + plan.admissionsMs;
        for (const PrefillSegment& segment : plan.segments) ms += segment.ms;
        return ms;
    }

    void take(const RequestTable::Token& token) {
        tally_.token(token.id, now_, token.generated, token.first);
        const ServeRequest& request = *table_.find(token.id);
        if (token.generated >= request.maxTokens) {
            ended_.push_back(token.id);
        } else if (!token.first) {
            const auto context = std::int64_t(request.promptTokens) + token.generated;
            table_.setWorkingSet(token.id, options_.costs.workingSet(options_.scheduler, token.generated - 1, context));
        }
    }

    const Workload& workload_;
    const SimulationOptions& options_;
    const WatchIteration& watch_;
    const Scheduler scheduler_;
    RequestTable table_;
    Tally tally_;
    IterationPlan plan_;
    std::vector<RequestId> ended_;
    std::int64_t now_ = 0, arrived_ = 0, misses_ = 0, selected_ = 0;
    double hitRate_ = 0.9, betweenMs_ = 0; // betweenMs_: from the last iteration until requests are taken in
};

} // namespace

double utilisationOf(const Workload& workload, const SimulationOptions& options) {
    const ServiceCosts& costs = options.costs;
    const SchedulerOptions& scheduler = options.scheduler;
    double prefillMs = 0, tokens = 0, deviceBytes = 0, hostBytes = 0, stepBytes = 0, workingSets = 0, context = 0;
    const auto n = double(workload.lines.size());
    for (const WorkloadLine& line : workload.lines) {
        const RequestNeeds needs = costs.shape.needsOf(scheduler, line.promptTokens, line.outputTokens);
        const std::int64_t length = std::int64_t(line.promptTokens) + line.outputTokens;
        prefillMs +=
            (costs.admission(line.promptTokens) + costs.prefillAll(line.promptTokens) + 2 * costs.requestMs) / n;
        tokens += (line.outputTokens - 1) / n; // the prefill makes the first token
        // A request decodes for as many steps as its answer has tokens, so batches have long answers more often than
        // short ones.
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
    // Finds the batch that makes most tokens per second among those that fit.
    double perToken = std::numeric_limits<double>::infinity();
    for (int batch = 1; batch <= std::max(1, int(rows)); ++batch) {
        const auto available = options.budget.device - std::int64_t(deviceBytes) * batch;
        const auto selected = std::int64_t(stepBytes) * batch;
        const double misses = (1 - costs.hitRate(scheduler, selected, available)) * double(selected);
        const double step = costs.decode(batch, std::int64_t(context) * batch, std::int64_t(misses), scheduler);
        perToken = std::min(perToken, (step + costs.overhead(batch) + costs.between(batch)) / batch);
    }
    return workload.rate() * (prefillMs + tokens * perToken) / 1e3;
}

ServingResult simulate(const Workload& workload, const SimulationOptions& options, const WatchIteration& watch) {
    return Run(workload, options, watch).make();
}

} // namespace kvscope::serve
