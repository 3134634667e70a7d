#include "profiler/run/run_recording.h"

#include "base/error.h"

#include <utility>

namespace kvscope {

RunRecording::RunRecording(RecordingRequest request, Backend backend) : request_(std::move(request)) {
    if (backend == Backend::Cuda && records() && request_.kernels && request_.level == RecordLevel::Full)
        gpu_ = std::make_unique<GpuRecording>(request_.calls, request_.pcie);
}

RunRecording::~RunRecording() = default;

void RunRecording::open() {
    if (!records()) {
        sink_ = std::make_unique<NullSink>();
        return;
    }
    RecorderOptions options;
    options.level = request_.level;
    options.overwrite = request_.overwrite;
    options.onCommit = request_.onCommit;
    auto recorder = std::make_unique<Recorder>(request_.trace, std::move(options));
    recorder_ = recorder.get();
    sink_ = std::move(recorder);
}

void RunRecording::flush() {
    if (recorder_ != nullptr) recorder_->flush();
}

RecorderHealth RunRecording::health() const { return recorder_ != nullptr ? recorder_->health() : RecorderHealth(); }
int RunRecording::runId() const { return recorder_ != nullptr ? recorder_->runId() : 0; }

RecorderHealth RunRecording::finish() {
    flush();
    const RecorderHealth now = health();
    if (!now.error.empty()) throw Error(ErrorKind::Storage, now.error, now.whatIsLeft());
    return now;
}

} // namespace kvscope
