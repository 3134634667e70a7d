#include "app/server/engine_thread.h"

#include "base/clock.h"

#include <algorithm>
#include <utility>

namespace kvscope::server {

using namespace serve;

/// Collects the engine's events until they are handed out, and tells them to the trace of a run that is recorded.
class EngineThread::Observer final : public EngineObserver {
public:
    void scheduled(RequestId id, std::int64_t ns) override {
        add(EngineEvent::Kind::Scheduled, id, ns);
        if (trace) trace->scheduled(id, ns);
    }
    void token(RequestId id, std::int32_t token, int generated, std::int64_t ns, const StepRecord& record) override {
        add(EngineEvent::Kind::Token, id, ns).token = token;
        for (const LayerRecord& layer : record.layers)
            batch.storedBytes += layer.d2hBytes, batch.exposedNs += layer.exposedNs;
        if (trace) trace->token(id, token, generated, ns, record);
    }
    void admitted(RequestId id, int row, std::int64_t ns) override {
        if (trace) trace->admitted(id, row, ns);
    }
    void released(RequestId id, int row, bool atEnd, std::int64_t ns) override {
        if (trace) trace->released(id, row, atEnd, ns);
    }
    void paused(RequestId id, std::int64_t ns) override {
        add(EngineEvent::Kind::Paused, id, ns);
        if (trace) trace->paused(id, ns);
    }
    void resumed(RequestId id, std::int64_t ns) override {
        add(EngineEvent::Kind::Resumed, id, ns);
        if (trace) trace->resumed(id, ns);
    }
    void ended(RequestId id, Ending ending, std::int64_t ns, const Error* error) override {
        EngineEvent& event = add(EngineEvent::Kind::Ended, id, ns);
        event.ending = ending;
        if (error) event.error = error->kind, event.message = oneLine(*error);
        if (trace) trace->ended(id, ending, ns, error);
    }
    void iteration(const IterationReport& report) override {
        const IterationPlan& plan = report.plan;
        batch.iterated = true;
        batch.prefilled = !plan.segments.empty(), batch.decoded = plan.decodeRows() > 0;
        batch.hits = report.hits, batch.misses = report.misses;
        batch.missedBytes = report.missedBytes, batch.surprises = report.surprises;
        batch.actualMs = double(report.endNs - report.beginNs) / 1e6, batch.predictedMs = plan.predictedMs;
        batch.gauges.waitingFor = plan.waitingFor;
        batch.gauges.workingSetBytes = plan.workingSetBytes, batch.gauges.availableBytes = plan.availableBytes;
        if (trace) trace->iteration(report);
    }

    EngineBatch batch;
    std::unique_ptr<ServingTrace> trace; // null: nothing is recorded

private:
    EngineEvent& add(EngineEvent::Kind kind, RequestId id, std::int64_t ns) {
        EngineEvent& event = batch.events.emplace_back();
        event.kind = kind, event.id = id, event.ns = ns;
        return event;
    }
};

namespace {

/// The run of an engine in a trace, from the engine's first iteration until finish().
class RecordedRun {
public:
    RecordedRun(TraceSink* sink, const Engine& engine) : sink_(sink) {
        if (sink_) sink_->beginRun(engine.runInfo());
    }
    ~RecordedRun() { end(RunStatus::Failed, "the engine has failed"); }
    RecordedRun(const RecordedRun&) = delete;
    RecordedRun& operator=(const RecordedRun&) = delete;

    void end(RunStatus status, const std::string& message) noexcept {
        if (sink_) sink_->endRun(status, message);
        sink_ = nullptr;
    }

private:
    TraceSink* sink_; // null: nothing is recorded, or the run has ended
};

} // namespace

EngineThread::EngineThread(LoadEngine load, Listener listener)
    : listener_(std::move(listener)),
      thread_([this, load = std::move(load)](const std::stop_token& stop) { run(load, stop); }) {}

EngineThread::~EngineThread() {
    thread_.request_stop();
    changed_.notify_all();
    thread_.join();
}

void EngineThread::order(Command command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    changed_.notify_one();
}

void EngineThread::submit(Submission submission, std::string kind) {
    order([submission = std::move(submission), kind = std::move(kind)](Engine& engine, ServingTrace* trace) mutable {
        if (trace)
            trace->submitted(submission.id, submission.queuedNs, int(submission.prompt.size()), submission.maxTokens,
                             kind);
        engine.submit(std::move(submission));
    });
}

void EngineThread::cancel(RequestId id, std::string by) {
    order([id, by = std::move(by)](Engine& engine, ServingTrace* trace) {
        if (trace) trace->cancelling(id, by);
        engine.cancel(id);
    });
}

void EngineThread::turnedAway(std::int64_t arrivalNs, std::string kind, std::string why) {
    order([arrivalNs, ns = steadyNowNs(), kind = std::move(kind), why = std::move(why)](Engine&, ServingTrace* trace) {
        if (trace) trace->turnedAway(arrivalNs, ns, kind, why);
    });
}

void EngineThread::run(const LoadEngine& load, const std::stop_token& stop) {
    try {
        LoadedEngine loaded = load(stop);
        Observer observer;
        const SchedulerOptions scheduler = loaded.options.scheduler;
        if (loaded.sink) loaded.options.level = std::max(loaded.sink->level(), RecordLevel::Selections);
        Engine engine(loaded.model, std::move(loaded.options), observer);
        RecordedRun run(loaded.sink, engine);
        if (loaded.sink) {
            observer.trace = std::make_unique<ServingTrace>(*loaded.sink, scheduler, steadyNowNs(), loaded.recordSteps);
            observer.trace->watches(engine);
        }
        listener_.ready(loaded.model, engine.description());
        try {
            iterate(engine, observer, loaded.recorderDrops, stop);
        } catch (const std::exception& failure) {
            if (observer.trace) observer.trace->finish();
            run.end(RunStatus::Failed, failure.what());
            throw;
        }
        if (observer.trace) observer.trace->finish();
        run.end(RunStatus::Finished, {});
    } catch (...) {
        listener_.failed(std::current_exception());
    }
}

void EngineThread::iterate(Engine& engine, Observer& observer, const std::function<std::int64_t()>& recorderDrops,
                           const std::stop_token& stop) {
    const auto handOut = [&] {
        EngineGauges& gauges = observer.batch.gauges;
        gauges.waiting = int(engine.table().waiting().size());
        gauges.running = int(engine.table().running().size());
        gauges.paused = int(engine.table().paused().size());
        gauges.used = engine.table().ledger().used();
        gauges.budget = engine.table().ledger().budget();
        if (recorderDrops) gauges.recorderDrops = recorderDrops();
        listener_.batch(std::exchange(observer.batch, {}));
    };
    handOut();
    std::vector<Command> commands;
    while (!stop.stop_requested()) {
        {
            const std::lock_guard lock(mutex_);
            std::swap(commands, commands_);
        }
        for (const Command& command : commands) command(engine, observer.trace.get());
        commands.clear();
        if (engine.iterate()) {
            handOut();
            continue;
        }
        handOut(); // what ended without an iteration, and that nothing runs
        if (observer.trace) observer.trace->idle();
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [&] { return !commands_.empty(); });
    }
}

} // namespace kvscope::server
