#include "core/serve/load.h"

#include "base/clock.h"
#include "base/error.h"
#include "core/serve/serving_trace.h"
#include "core/serve/simulation.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <thread>
#include <unordered_map>

namespace kvscope::serve {
namespace {

constexpr std::int64_t kLongestSleepNs = 20'000'000; // so that Ctrl-C is heard

/// The clock of a load, which begins with 0.
class LoadClock {
public:
    LoadClock(bool processorTime, double speed) : processorTime_(processorTime), speed_(speed) { begin(); }

    void begin() { origin_ = time(); }
    std::int64_t now() const { return time() - origin_; }
    /// Waits until `ns` have passed, or less than that on the wall's clock, so that Ctrl-C is heard.
    void wait(std::int64_t ns) {
        if (ns <= 0) return;
        if (processorTime_)
            origin_ -= ns;
        else
            std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(ns, kLongestSleepNs)));
    }

private:
    std::int64_t time() const { return processorTime_ ? std::int64_t(double(threadNowNs()) * speed_) : steadyNowNs(); }

    const bool processorTime_;
    const double speed_; // of processor time
    std::int64_t origin_ = 0;
};

/// Passes iterations on to a fit of their costs.
class Fitting : public EngineObserver {
public:
    /// shared: a fit that takes the iterations as well; may be null
    Fitting(const EngineOptions& options, CostFit* shared)
        : chunks_(options.scheduler.prefill == PrefillPlan::Chunks), scheduler_(options.scheduler), shared_(shared) {}

    void watches(const Engine& engine) { engine_ = &engine; }
    void submitted(RequestId id, int promptTokens) { promptTokens_[id] = promptTokens; }
    void ended(RequestId id, Ending, std::int64_t, const Error*) override { ended_.push_back(id); }
    void iteration(const IterationReport& report) override {
        lengths_.clear(), admitted_.clear();
        for (const PrefillSegment& segment : report.plan.segments) lengths_.push_back(promptTokens_.at(segment.id));
        for (const Member& member : report.plan.admitted) admitted_.push_back(promptTokens_.at(member.id));
        fit_.add(report, engine_->costs().shape, chunks_, lengths_, admitted_);
        if (shared_) shared_->add(report, engine_->costs().shape, chunks_, lengths_, admitted_);
        for (const RequestId id : ended_) promptTokens_.erase(id);
        ended_.clear();
    }
    void forget() { fit_ = {}; } // forgets the iterations so far
    const CostFit& fit() const { return fit_; }
    ServiceCosts fitted() const { return fit_.fit(engine_->costs(), scheduler_); }

private:
    const Engine* engine_ = nullptr;
    const bool chunks_;
    const SchedulerOptions scheduler_;
    CostFit* const shared_;
    CostFit fit_;
    std::unordered_map<RequestId, int> promptTokens_;
    std::vector<RequestId> ended_; // the engine tells that requests ended before it tells of their last iteration
    std::vector<int> lengths_, admitted_;
};

/// Passes on to a tally, and to a trace where the run is recorded, what the engine tells.
class Counting final : public Fitting {
public:
    Counting(const EngineOptions& options, Tally& tally, const LoadOptions& load)
        : Fitting(options, load.fit), tally_(tally) {
        if (load.sink) trace_ = std::make_unique<ServingTrace>(*load.sink, options.scheduler, 0, load.recordSteps);
    }

    void watches(const Engine& engine) {
        Fitting::watches(engine);
        if (trace_) trace_->watches(engine);
    }
    void arrived(RequestId id, std::int64_t arrivalNs, const WorkloadLine& line, int promptTokens) {
        tally_.arrived(id);
        submitted(id, promptTokens);
        if (trace_) trace_->submitted(id, arrivalNs, promptTokens, line.outputTokens, line.kind);
    }
    void finish() {
        if (trace_) trace_->finish();
    }
    void admitted(RequestId id, int row, std::int64_t ns) override {
        if (trace_) trace_->admitted(id, row, ns);
    }
    void released(RequestId id, int row, bool atEnd, std::int64_t ns) override {
        if (trace_) trace_->released(id, row, atEnd, ns);
    }
    void scheduled(RequestId id, std::int64_t ns) override {
        tally_.scheduled(id, ns);
        if (trace_) trace_->scheduled(id, ns);
    }
    void token(RequestId id, std::int32_t token, int generated, std::int64_t ns, const StepRecord& record) override {
        tally_.token(id, ns, generated, generated == 1);
        if (trace_) trace_->token(id, token, generated, ns, record);
    }
    void paused(RequestId id, std::int64_t ns) override {
        tally_.paused(id, ns);
        if (trace_) trace_->paused(id, ns);
    }
    void resumed(RequestId id, std::int64_t ns) override {
        tally_.resumed(id, ns);
        if (trace_) trace_->resumed(id, ns);
    }
    void ended(RequestId id, Ending ending, std::int64_t ns, const Error* error) override {
        const bool finished = ending == Ending::Length || ending == Ending::Stop;
        if (ending == Ending::Refused && refusal.empty() && error) refusal = oneLine(*error);
        if (ending == Ending::Failed && failed++ == 0 && error) failure = oneLine(*error);
        tally_.ended(id,
                     finished                    ? Status::Finished
                     : ending == Ending::Refused ? Status::Refused
                                                 : Status::Unfinished,
                     ns);
        Fitting::ended(id, ending, ns, error);
        if (trace_) trace_->ended(id, ending, ns, error);
    }
    void iteration(const IterationReport& report) override {
        Fitting::iteration(report);
        if (trace_) trace_->iteration(report);
        tally_.iteration({report.beginNs, report.endNs, double(report.endNs - report.beginNs) / 1e6,
                          report.plan.predictedMs, report.plan.limitedBy, report.plan.decodeRows(),
                          double(report.missedBytes), double(report.selectedBytes)});
    }

    std::string refusal, failure;
    int failed = 0;

private:
    Tally& tally_;
    std::unique_ptr<ServingTrace> trace_;
};

/// Offers the workload until every request of the window has ended.
void offer(const LoadOptions& options, const Tally& tally, Engine& engine, Counting& counting, LoadClock& clock) {
    for (std::int64_t next = 0; tally.open();) {
        for (; tally.arrivalNs(next) <= clock.now(); ++next) {
            const WorkloadLine& line = tally.lineOf(next);
            Submission request;
            request.id = next;
            request.prompt = options.prompt(line, next);
            request.maxTokens = line.outputTokens;
            request.stopAtEos = false;
            request.sampling.seed = line.seed;
            request.queuedNs = tally.arrivalNs(next);
            counting.arrived(next, request.queuedNs, line, int(request.prompt.size()));
            engine.submit(std::move(request));
        }
        if (options.between) options.between(tally.done());
        if (!engine.iterate()) clock.wait(tally.arrivalNs(next) - clock.now());
    }
}

/// A fit to the iterations of an engine that has ended, and what that engine was.
struct Measured {
    CostFit fit;
    ServiceCosts costs; // with the engine's shape
    bool ownDeviceTier = false;
};

/// The context, in tokens, for which steps are measured: a method selects as much in it as it ever does, so that such a
/// step reads what a step of a longer context reads. Of an engine that offloads the context is longer than what fits on
/// the device, so that warm steps load blocks too. Shorter where the budgets have no room for two such rows, and at
/// most 16,384 tokens (1,024 on the CPU), because reading longer prompts takes long.
int measuredContext(const MemoryShape& shape, const EngineOptions& engine, int answer) {
    const bool cuda = engine.session.backend == Backend::Cuda;
    const SchedulerOptions& options = engine.scheduler;
    const int least = 256, most = cuda ? 16384 : 1024;
    std::int64_t blocks = shape.selectedBlocks;
    if (cuda && options.offload)
        blocks = (options.cache == CachePlan::Partition ? shape.partitionBlocks(options) : blocks) + (blocks + 1) / 2;
    const auto haveRoom = [&](int rows, int tokens) {
        const RequestNeeds needs = shape.needsOf(options, tokens, answer);
        const std::int64_t slots = shape.firstWorkingSet(options, tokens + answer);
        return rows * (needs.deviceBytes + slots) <= engine.budget.device &&
               rows * needs.hostBytes <= engine.budget.host &&
               needs.scratchBytes + needs.chunkTokenBytes * tokens <= engine.budget.scratch;
    };
    // Where even two short rows have no room, because of the slots that every row has, there is one.
    const int rows = haveRoom(2, least) ? 2 : 1;
    int tokens = int(std::clamp<std::int64_t>(blocks * shape.blockTokens, least, most));
    while (tokens > least && !haveRoom(rows, tokens)) tokens = std::max(least, tokens / 2);
    return tokens;
}

Measured measure(const std::shared_ptr<const Model>& model, const EngineOptions& engineOptions,
                 const LoadOptions& options) {
    const bool cuda = engineOptions.session.backend == Backend::Cuda;
    const int rows = cuda ? 16 : 8; // a CPU would take long for more
    EngineOptions measured = engineOptions;
    measured.scheduler.rows = rows;
    measured.scheduler.tbtBoundMs = 1e7, measured.scheduler.iterationMs = 0; // whole prompts at once
    measured.scheduler.longPrefills = measured.scheduler.shortTurns = 1;
    LoadClock clock(options.processorTime, options.processorSpeed);
    measured.now = [&clock] { return clock.now(); };
    Fitting fitting(measured, nullptr);
    Engine engine(model, measured, fitting);
    fitting.watches(engine);
    RequestId id = 0;
    const int longest = model->config().maxPositions;
    const auto submit = [&](int tokens, int answer) {
        WorkloadLine line;
        line.outputTokens = answer;
        line.promptTokens = std::max(1, std::min(tokens, longest - line.outputTokens));
        line.seed = std::uint64_t(id);
        Submission request;
        request.id = id;
        request.prompt = options.prompt(line, id);
        request.maxTokens = line.outputTokens;
        request.stopAtEos = false;
        fitting.submitted(id++, line.promptTokens);
        engine.submit(std::move(request));
    };
    const auto serve = [&] {
        while (engine.iterate())
            if (options.between) options.between(0);
    };
    // Prompts of these lengths show what their tokens cost. With an answer of one token they make no step: their
    // contexts are shorter than what a step of a longer one reads.
    const auto readShort = [&] {
        for (const int tokens : {2048, 1536, 1024, 768, 640, 512, 384, 256})
            if (cuda || tokens == 512 || tokens == 256) submit(tokens, 1);
        serve();
    };
    // All rows are there for some steps before the first answer ends, and then they end one after the other, so that
    // steps of all rows, of one less and so on are measured. Rows for which the device has no room wait until others
    // have left.
    const int steps = 6, first = rows + steps;
    const int whole = measuredContext(engine.costs().shape, measured, first + steps * (rows - 1));
    const auto serveRows = [&](int later) {
        for (int row = 0; row < rows; ++row) submit(whole, first + row * later);
        serve();
    };
    if (cuda) {
        // Attention, which grows with the square of a prompt's length, takes no time that shows in the short prompts,
        // and what a token of context costs shows between steps of equally many rows. A long prompt that has no room in
        // the engine's budgets is refused and not measured.
        constexpr int kLong[] = {32768, 16384, 8192, 4096};
        const auto readLong = [&] {
            int answer = 24;
            for (const int tokens : kLong)
                if (tokens >= whole && tokens + answer < longest) submit(tokens, answer), answer += 24;
            serve();
        };
        // The first prompt of each length waits for the libraries to choose and load the kernels of its products, and
        // the first rows for memory of the host that later ones get from them.
        readLong();
        readShort();
        serveRows(0);
        fitting.forget();
        readLong();
    } else {
        for (const int tokens : {whole, 4096}) submit(tokens, 12), serve();
    }
    readShort();
    serveRows(steps);
    return {fitting.fit(), engine.costs(), engine.ownDeviceTier()};
}

} // namespace

LoadResult load(const std::shared_ptr<const Model>& model, const Workload& workload, const EngineOptions& engineOptions,
                const LoadOptions& options) {
    Tally tally(workload, options);
    EngineOptions timed = engineOptions;
    if (options.processorTime && (timed.session.threads != 1 || timed.session.backend != Backend::Cpu))
        throw Error(ErrorKind::BadInput, "processor time is counted of one thread, and this engine has others",
                    "serve with --backend cpu --threads 1");
    LoadClock clock(options.processorTime, options.processorSpeed);
    timed.now = [&clock] { return clock.now(); };
    if (options.sink) timed.level = std::max(options.sink->level(), RecordLevel::Selections); // blocks are counted
    Counting counting(timed, tally, options);
    Engine engine(model, timed, counting);
    counting.watches(engine);
    if (options.sink) {
        RunInfo info = engine.runInfo();
        if (engineOptions.session.name.empty())
            info.name += fmt::format(", {} at {:.4g} requests/s", workload.name, workload.rate());
        options.sink->beginRun(info);
    }
    clock.begin();
    try {
        offer(options, tally, engine, counting, clock);
    } catch (const Error& error) {
        counting.finish();
        if (options.sink)
            options.sink->endRun(error.kind == ErrorKind::Cancelled ? RunStatus::Stopped : RunStatus::Failed,
                                 error.kind == ErrorKind::Cancelled ? std::string() : oneLine(error));
        throw;
    }
    counting.finish();
    if (options.sink) options.sink->endRun(RunStatus::Finished, {});
    LoadResult result{tally.finish(),  counting.fitted(), engine.description(), counting.refusal,
                      counting.failed, counting.failure,  engine.rowsApart()};
    result.numbers.measured = true;
    SimulationOptions predicted;
    predicted.scheduler = timed.scheduler, predicted.costs = result.costs, predicted.budget = timed.budget;
    result.numbers.utilisation = utilisationOf(workload, predicted);
    return result;
}

ServiceCosts measureCosts(const std::shared_ptr<const Model>& model, const EngineOptions& engine,
                          const LoadOptions& options) {
    const Measured measured = measure(model, engine, options);
    ServiceCosts all = measured.fit.fit(measured.costs, engine.scheduler);
    // The simulator knows no loads of a method that decides itself what is on the device: they are in its steps.
    if (engine.session.backend != Backend::Cuda || !engine.scheduler.offload || measured.ownDeviceTier) return all;
    EngineOptions resident = engine;
    resident.scheduler.offload = false;
    Measured beside;
    try {
        beside = measure(model, resident, options);
    } catch (const Error& error) {
        if (error.kind != ErrorKind::OutOfMemory) throw;
    }
    if (beside.fit.decodes() == 0) return all; // no request had room with everything on the device
    ServiceCosts apart = measured.fit.fitOffload(beside.fit.fit(measured.costs, resident.scheduler), engine.scheduler);
    apart.partitionHits = std::move(all.partitionHits);
    return apart;
}

ServiceCosts measureOffload(const std::shared_ptr<const Model>& model, const EngineOptions& engine,
                            const LoadOptions& options, const ServiceCosts& resident) {
    return measure(model, engine, options).fit.fitOffload(resident, engine.scheduler);
}

} // namespace kvscope::serve
