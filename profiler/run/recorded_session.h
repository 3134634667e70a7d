// One run from its request to its end, recorded or not: for the command line, the desktop, and the check of a replay.
// The recorders are made first, then the session; they end in the opposite order, however the run ends.
#pragma once

#include "core/session/decode_session.h"
#include "profiler/run/run_recording.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// Used from one thread: construct, begin, run.
class RecordedSession {
public:
    /// Whether the run is to go on.
    enum class Go : std::uint8_t { On, Stop };
    /// Called once the prompts are read and after every decode step, also the last one.
    using EachStep = std::function<Go(DecodeSession& session)>;

    /// Attaches to the GPU's recorder where that is asked for, so make it before the first CUDA call: before the model.
    /// options.gpuTrace: leave it out.
    RecordedSession(SessionOptions options, RecordingRequest recording);
    ~RecordedSession(); // a run that has not ended ends as stopped

    /// One more row of run_meta. Before begin.
    void addMeta(std::string key, std::string value) { options_.meta.emplace_back(std::move(key), std::move(value)); }
    /// Opens the file, then makes the session, which begins the run in it. @throws Error: as Recorder and DecodeSession
    void begin(std::shared_ptr<const Model> model, std::vector<std::vector<std::int32_t>> prompts);
    /// Reads the prompts and decodes until every sequence has ended, or `eachStep` says Stop. Ends the run as finished,
    /// or as stopped; where something throws, as failed with its sentence, or as stopped where a stop was asked for.
    /// The run also fails where another program has written to the model's files meanwhile.
    /// stop: ends the reading of the prompts. eachStep: null: nobody follows.
    /// @return false: it was stopped. @throws Error(Cancelled), what a session throws, what eachStep throws
    bool run(const Progress& progress, const std::stop_token& stop, const EachStep& eachStep = {});

    /// After begin.
    DecodeSession& session() { return *session_; }
    RunRecording& recording() { return recording_; }

private:
    bool decode(const Progress& progress, const std::stop_token& stop, const EachStep& eachStep);

    std::shared_ptr<const Model> model_;
    SessionOptions options_;
    RunRecording recording_;
    std::optional<DecodeSession> session_; // last: it ends first
};

} // namespace kvscope
