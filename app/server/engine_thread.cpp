#include "app/server/engine_thread.h"

#include <utility>

namespace kvscope::server {

using namespace serve;

/// Collects events until they are handed out.
class EngineThread::Observer final : public EngineObserver {
public:
    void scheduled(RequestId id, std::int64_t ns) override { add(EngineEvent::Kind::Scheduled, id, ns); }
    void token(RequestId id, std::int32_t token, int, std::int64_t ns, const StepRecord&) override {
        add(EngineEvent::Kind::Token, id, ns).token = token;
    }
    void paused(RequestId id, std::int64_t ns) override { add(EngineEvent::Kind::Paused, id, ns); }
    void resumed(RequestId id, std::int64_t ns) override { add(EngineEvent::Kind::Resumed, id, ns); }
    void ended(RequestId id, Ending ending, std::int64_t ns, const Error* error) override {
        EngineEvent& event = add(EngineEvent::Kind::Ended, id, ns);
        event.ending = ending;
        if (error) event.error = error->kind, event.message = oneLine(*error);
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
    }

    EngineBatch batch;

private:
    EngineEvent& add(EngineEvent::Kind kind, RequestId id, std::int64_t ns) {
        EngineEvent& event = batch.events.emplace_back();
        event.kind = kind, event.id = id, event.ns = ns;
        return event;
    }
};

EngineThread::EngineThread(LoadEngine load, Listener listener)
    : listener_(std::move(listener)),
      thread_([this, load = std::move(load)](const std::stop_token& stop) { run(load, stop); }) {}

EngineThread::~EngineThread() {
    thread_.request_stop();
    changed_.notify_all();
    thread_.join();
}

void EngineThread::submit(Submission submission) {
    const std::lock_guard lock(mutex_);
    if (engine_) engine_->submit(std::move(submission));
    work_ = true;
    changed_.notify_one();
}

void EngineThread::cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    if (engine_) engine_->cancel(id);
    work_ = true;
    changed_.notify_one();
}

void EngineThread::run(const LoadEngine& load, const std::stop_token& stop) {
    try {
        LoadedEngine loaded = load(stop);
        Observer observer;
        Engine engine(loaded.model, std::move(loaded.options), observer);
        {
            const std::lock_guard lock(mutex_);
            engine_ = &engine;
        }
        struct Leaving {
            EngineThread& thread;
            ~Leaving() {
                const std::lock_guard lock(thread.mutex_);
                thread.engine_ = nullptr;
            }
        } leaving{*this};
        listener_.ready(loaded.model, engine.description());
        const auto handOut = [&] {
            EngineGauges& gauges = observer.batch.gauges;
            gauges.waiting = int(engine.table().waiting().size());
            gauges.running = int(engine.table().running().size());
            gauges.paused = int(engine.table().paused().size());
            gauges.used = engine.table().ledger().used();
            gauges.budget = engine.table().ledger().budget();
            listener_.batch(std::exchange(observer.batch, {}));
        };
        handOut();
        while (!stop.stop_requested()) {
            if (engine.iterate()) {
                handOut();
                continue;
            }
            handOut(); // what ended without an iteration, and that nothing runs
            std::unique_lock lock(mutex_);
            changed_.wait(lock, stop, [&] { return work_; });
            work_ = false;
        }
    } catch (...) {
        listener_.failed(std::current_exception());
    }
}

} // namespace kvscope::server
