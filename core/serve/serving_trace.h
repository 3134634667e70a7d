// Hands what a serving engine does to a trace: requests and iterations, and if asked for the steps of the iterations
// that decode, with the selections of every row.
#pragma once

#include "core/serve/engine.h"
#include "core/trace/serving_record.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace kvscope::serve {

/// Observes one engine, on the engine's thread. submitted() is called for a request before the engine takes it in. The
/// run of the sink lasts from before the first call until after finish().
class ServingTrace : public EngineObserver {
public:
    /// originNs: the engine's time at which the run's clock begins. steps: a step is recorded for every iteration that
    /// decodes, with the number of the iteration, and in it a row of the batch is a sequence.
    ServingTrace(TraceSink& sink, const SchedulerOptions& options, std::int64_t originNs = 0, bool steps = false);

    /// Sets the engine that is asked which memory a request has.
    void watches(const Engine& engine) { engine_ = &engine; }
    void submitted(RequestId id, std::int64_t arrivalNs, int promptTokens, int maxTokens, const std::string& kind);
    /// Called for a request that was refused before the engine heard of it, and whose tokens nobody counted.
    void turnedAway(std::int64_t arrivalNs, std::int64_t ns, const std::string& kind, const std::string& why);
    /// Called before the engine is told to cancel. by: on whose behalf.
    void cancelling(RequestId id, const std::string& by);
    /// Hands over what has happened since the last iteration, when none follows.
    void idle() { handOver(); }
    /// Called when the engine stops: requests that have not ended are handed over as they are.
    void finish();

    void admitted(RequestId id, int row, std::int64_t ns) override;
    void released(RequestId id, int row, bool atEnd, std::int64_t ns) override;
    void scheduled(RequestId id, std::int64_t ns) override;
    void token(RequestId id, std::int32_t token, int generated, std::int64_t ns, const StepRecord& record) override;
    void paused(RequestId id, std::int64_t ns) override;
    void resumed(RequestId id, std::int64_t ns) override;
    void ended(RequestId id, Ending ending, std::int64_t ns, const Error* error) override;
    void iteration(const IterationReport& report) override;

private:
    struct Known {
        ServedRequest request;
        RequestSpan span; // the one that is open
        std::string cancelledBy;
        int row = -1;
    };
    std::int64_t at(std::int64_t ns) const { return ns - originNs_; }
    void endSpan(Known& known, std::int64_t ns); // the open one
    /// Ends the open span of the request and begins one with the new state.
    void enter(Known& known, ServedState state, std::int64_t ns);
    void changed(const Known& known) { changed_.insert(known.request.number); }
    void addEvent(const Known& known, RowEventKind kind, std::int32_t iteration, std::int64_t ns);
    void addToStep(const Known& known, int generated, const StepRecord& record);
    void takePoolMisses(std::span<const PooledBlock> misses);
    void handOverStep(const IterationReport& report);
    void handOver();

    TraceSink& sink_;
    const SchedulerOptions options_;
    const std::int64_t originNs_;
    const bool steps_;
    const Engine* engine_ = nullptr;
    std::map<RequestId, Known> known_; // that have not ended
    std::set<std::int64_t> changed_;   // requests that changed since the last hand-over
    std::unique_ptr<ServingRecord> record_;
    std::unique_ptr<StepRecord> step_; // of the iteration that ends now; null: none of its rows has a token yet
    std::int64_t arrivals_ = 0;
    std::int32_t iterations_ = 0;
};

} // namespace kvscope::serve
