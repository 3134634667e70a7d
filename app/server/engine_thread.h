// Runs an engine in a thread of its own. Any thread may submit requests; once per iteration the thread hands out what
// has happened.
#pragma once

#include "core/serve/engine.h"
#include "core/serve/serving_trace.h"
#include "core/trace/trace_sink.h"

#include <array>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvscope::server {

struct EngineEvent {
    enum class Kind : std::uint8_t { Scheduled, Token, Paused, Resumed, Ended };
    Kind kind = Kind::Token;
    serve::RequestId id = 0;
    std::int64_t ns = 0; // of the steady clock
    std::int32_t token = 0;
    serve::Ending ending = serve::Ending::Length;
    ErrorKind error = ErrorKind::BadInput; // why, of Refused and Failed
    std::string message;                   // the same in one sentence
};

/// How the engine stands between two iterations.
struct EngineGauges {
    int waiting = 0, running = 0, paused = 0;
    std::array<int, serve::kLimits> waitingFor{};
    std::int64_t workingSetBytes = 0, availableBytes = 0; // of the last plan
    serve::Amounts used;
    serve::Budget budget;
    std::int64_t recorderDrops = 0; // records that the run's recorder had no room for; 0 where nothing is recorded
};

/// What one iteration did, and all events up to its end.
struct EngineBatch {
    std::vector<EngineEvent> events;
    EngineGauges gauges;
    bool iterated = false; // an iteration has run, and the numbers below are its numbers
    bool prefilled = false, decoded = false;
    std::int64_t hits = 0, misses = 0, missedBytes = 0, surprises = 0;
    std::int64_t storedBytes = 0; // of full blocks that went to the host, those of whole prompts too
    std::int64_t exposedNs = 0;   // time that rows waited for transfers, summed over rows; modelled on a CPU
    double actualMs = 0, predictedMs = 0;
};

/// What the engine's thread needs for its engine: the model, the options, and where the run is recorded.
struct LoadedEngine {
    std::shared_ptr<const Model> model;
    serve::EngineOptions options;
    TraceSink* sink = nullptr;                     // lives until the thread has ended; null: nothing is recorded
    bool recordSteps = false;                      // with a sink: steps and selections too, at the level of the sink
    std::function<std::int64_t()> recorderDrops{}; // with a sink: how many records it could not take so far
};
/// Makes the model and the options, in the engine's thread. @throws as Engine does, and Error(Cancelled) after the stop
using LoadEngine = std::function<LoadedEngine(const std::stop_token& stop)>;

class EngineThread {
public:
    /// Called in the engine's thread.
    struct Listener {
        std::function<void(std::shared_ptr<const Model>, const std::string& backend)> ready;
        std::function<void(EngineBatch)> batch;
        std::function<void(std::exception_ptr)> failed; // the thread has ended
    };

    EngineThread(LoadEngine load, Listener listener);
    /// Ends the thread after the iteration that runs; requests that are left are dropped.
    ~EngineThread();
    EngineThread(const EngineThread&) = delete;
    EngineThread& operator=(const EngineThread&) = delete;

    /// Submits a request. Call it only after the listener's `ready`. kind: the request's class, for the trace.
    void submit(serve::Submission submission, std::string kind);
    /// by: on whose behalf, for the trace.
    void cancel(serve::RequestId id, std::string by);
    /// Tells the trace that a request was refused before it was submitted. arrivalNs: by the steady clock.
    void turnedAway(std::int64_t arrivalNs, std::string kind, std::string why);

private:
    class Observer;
    /// Runs in the engine's thread between two iterations. The trace is null where nothing is recorded.
    using Command = std::function<void(serve::Engine&, serve::ServingTrace*)>;
    void run(const LoadEngine& load, const std::stop_token& stop);
    void iterate(serve::Engine& engine, Observer& observer, const std::function<std::int64_t()>& recorderDrops,
                 const std::stop_token& stop);
    void order(Command command);

    const Listener listener_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    std::vector<Command> commands_; // guarded by mutex_
    std::jthread thread_;           // the last member, because the thread must end before the others are destroyed
};

} // namespace kvscope::server
