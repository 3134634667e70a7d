#include "profiler/run/recorded_session.h"

#include "base/error.h"
#include "core/model/mapped_watch.h"

#include <exception>
#include <utility>

namespace kvscope {

RecordedSession::RecordedSession(SessionOptions options, RecordingRequest recording)
    : options_(std::move(options)), recording_(std::move(recording), options_.backend) {
    options_.gpuTrace = recording_.gpuTrace();
}

RecordedSession::~RecordedSession() = default;

void RecordedSession::begin(std::shared_ptr<const Model> model, std::vector<std::vector<std::int32_t>> prompts) {
    recording_.open();
    model_ = model;
    session_.emplace(std::move(model), std::move(prompts), options_, recording_.sink());
}

bool RecordedSession::run(const Progress& progress, const std::stop_token& stop, const EachStep& eachStep) {
    try {
        const bool completed = decode(progress, stop, eachStep);
        session_->end(completed ? RunStatus::Finished : RunStatus::Stopped);
        return completed;
    } catch (const Error& error) {
        const bool cancelled = error.kind == ErrorKind::Cancelled;
        session_->end(cancelled ? RunStatus::Stopped : RunStatus::Failed, cancelled ? std::string() : oneLine(error));
        throw;
    } catch (const std::exception& error) {
        session_->end(RunStatus::Failed, error.what());
        throw;
    }
}

bool RecordedSession::decode(const Progress& progress, const std::stop_token& stop, const EachStep& eachStep) {
    const auto goesOn = [&] { return !eachStep || eachStep(*session_) == Go::On; };
    session_->prefill(progress, stop);
    bool wanted = goesOn();
    while (wanted && session_->step()) wanted = goesOn();
    if (!wanted && options_.backend == Backend::Cpu) refuseWrittenWeights(*model_); // else the session's end does it
    return wanted;
}

} // namespace kvscope
