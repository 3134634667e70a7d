// The engine in a thread of its own: it takes submissions from any thread and hands out what happened, once per
// iteration.
#pragma once

#include "core/serve/engine.h"

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
    ErrorKind error = ErrorKind::BadInput; // of Refused and Failed
    std::string message;                   // likewise, one sentence
};

/// The engine between two iterations.
struct EngineGauges {
    int waiting = 0, running = 0, paused = 0;
    std::array<int, serve::kLimits> waitingFor{};
    std::int64_t workingSetBytes = 0, availableBytes = 0; // of the last plan
    serve::Amounts used;
    serve::Budget budget;
};

/// What one iteration did, with all events up to its end.
struct EngineBatch {
    std::vector<EngineEvent> events;
    EngineGauges gauges;
    bool iterated = false; // the numbers below are of an iteration
    bool prefilled = false, decoded = false;
    std::int64_t hits = 0, misses = 0, missedBytes = 0, surprises = 0;
    double actualMs = 0, predictedMs = 0;
};

/// Makes the model and what an engine of it needs; runs in the engine's thread. @throws as Engine does, and
/// Error(Cancelled) after the stop
struct LoadedEngine {
    std::shared_ptr<const Model> model;
    serve::EngineOptions options;
};
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
    /// Ends the thread behind the present iteration; requests that are left are dropped.
    ~EngineThread();
    EngineThread(const EngineThread&) = delete;
    EngineThread& operator=(const EngineThread&) = delete;

    /// After `ready`.
    void submit(serve::Submission submission);
    void cancel(serve::RequestId id);

private:
    class Observer;
    void run(const LoadEngine& load, const std::stop_token& stop);

    const Listener listener_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    bool work_ = false;               // under mutex_: something came since the last look
    serve::Engine* engine_ = nullptr; // under mutex_
    std::jthread thread_;             // the last member: it ends first
};

} // namespace kvscope::server
