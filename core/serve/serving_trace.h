// Hands what a serving engine does to a trace.
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

/// An observer of one engine, on the engine's thread. Requests are told with submitted() before the engine takes them
/// in. The sink's run is on from before the first call until after finish().
class ServingTrace : public EngineObserver {
public:
    /// originNs: the engine's time at which the run's clock is 0.
    ServingTrace(TraceSink& sink, const SchedulerOptions& options, std::int64_t originNs = 0);

    /// What memory a request has is asked of this engine.
    void watches(const Engine& engine) { engine_ = &engine; }
    void submitted(RequestId id, std::int64_t arrivalNs, int promptTokens, int maxTokens, const std::string& kind);
    /// The engine does not go on: requests that have not ended are told as they are.
    void finish();

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
    };
    std::int64_t at(std::int64_t ns) const { return ns - originNs_; }
    void enter(Known& known, const char* state, std::int64_t ns);
    void changed(const Known& known) { changed_.insert(known.request.number); }
    void handOver();

    TraceSink& sink_;
    const SchedulerOptions options_;
    const std::int64_t originNs_;
    const Engine* engine_ = nullptr;
    std::map<RequestId, Known> known_; // that have not ended
    std::set<std::int64_t> changed_;   // since the last hand-over
    std::unique_ptr<ServingRecord> record_;
    std::int64_t arrivals_ = 0;
    std::int32_t iterations_ = 0;
};

} // namespace kvscope::serve
