#include "profiler/run/run_recording.h"

#include "base/error.h"

#include <filesystem>
#include <utility>

namespace kvscope {

/// The file of a recording. It is replaced when the run begins: one that is refused before leaves the run that the file
/// holds, and no file where there was none.
class RunRecording::File final : public TraceSink {
public:
    File(std::string path, RecorderOptions options) : path_(std::move(path)), options_(std::move(options)) {
        std::error_code ignored;
        isNew_ = !std::filesystem::exists(path_, ignored);
        if (!options_.overwrite || isNew_) open();
    }
    ~File() override {
        if (!isNew_ || began_ || !recorder_) return;
        std::error_code ignored; // the recorder still has the lock, so that nobody else has begun a run in the file
        for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix, ignored);
    }
    RecordLevel level() const override { return options_.level; }
    void beginRun(const RunInfo& info) override {
        if (!recorder_) open();
        recorder_->beginRun(info);
        began_ = true;
    }
    std::unique_ptr<StepRecord> acquire() override { return recorder_->acquire(); }
    void take(RunEvent event) noexcept override { recorder_->take(std::move(event)); }
    void endRun(RunStatus status, const std::string& message) noexcept override {
        if (recorder_) recorder_->endRun(status, message);
    }
    Recorder* recorder() const { return recorder_.get(); }

private:
    void open() { recorder_ = std::make_unique<Recorder>(path_, options_); }
    const std::string path_;
    const RecorderOptions options_;
    bool isNew_ = false, began_ = false;
    std::unique_ptr<Recorder> recorder_; // null: the file is not open yet
};

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
    auto file = std::make_unique<File>(request_.trace, std::move(options));
    file_ = file.get();
    sink_ = std::move(file);
}

Recorder* RunRecording::recorder() const { return file_ != nullptr ? file_->recorder() : nullptr; }

void RunRecording::flush() {
    if (recorder() != nullptr) recorder()->flush();
}

RecorderHealth RunRecording::health() const { return recorder() != nullptr ? recorder()->health() : RecorderHealth(); }
int RunRecording::runId() const { return recorder() != nullptr ? recorder()->runId() : 0; }

RecorderHealth RunRecording::finish() {
    flush();
    const RecorderHealth now = health();
    if (!now.error.empty()) throw Error(ErrorKind::Storage, now.error, now.whatIsLeft());
    return now;
}

} // namespace kvscope
