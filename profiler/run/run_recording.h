// What a run is recorded with: the recorder of the GPU, and the file. Makes them in the order that they need, and says
// what they could not do.
#pragma once

#include "core/plan/backend.h"
#include "core/trace/gpu_trace.h"
#include "profiler/cupti/gpu_recording.h"
#include "profiler/cupti/pcie_counting.h"
#include "profiler/record/recorder.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace kvscope {

struct RecordingRequest {
    std::string trace; // the file; empty: nothing is recorded
    RecordLevel level = RecordLevel::Full;
    bool overwrite = false;                 // as RecorderOptions::overwrite
    bool kernels = true;                    // on a GPU at level full: also kernels, copies and PCIe counters
    bool calls = true;                      // with kernels: the CUDA calls, with arrows to what they started
    PcieCounting pcie = PcieCounting::Auto; // with kernels
    /// As RecorderOptions::onCommit.
    std::function<void(std::int64_t revision)> onCommit;
};

class RunRecording {
public:
    /// Attaches to the GPU's recorder where the request asks for kernels: make it before the first CUDA call.
    RunRecording(RecordingRequest request, Backend backend);
    ~RunRecording();

    /// The recorder for the engine; null: no kernels are recorded.
    GpuTrace* gpuTrace() { return gpu_.get(); }
    /// Why kernels are not recorded although that was asked for; else empty.
    std::string kernelRefusal() const { return gpu_ ? gpu_->refusal() : std::string(); }
    /// When a step was made: the reason why the link is counted in another way than was asked for; empty: it is not.
    std::string pcieRemark() const { return gpu_ ? gpu_->pcieRemark() : std::string(); }

    /// Creates or opens the file. A file that is to be replaced stays as it is until the run begins; beginning the run
    /// then throws if it cannot be replaced.
    /// @throws Error(Storage) naming it
    void open();
    /// Where the run goes; after open. Drops everything where nothing is recorded.
    TraceSink& sink() { return *sink_; }

    bool records() const { return !request_.trace.empty(); }
    const std::string& trace() const { return request_.trace; }
    /// Waits until everything so far is in the file.
    void flush();
    RecorderHealth health() const;
    int runId() const; // of the current or last run; 0: none
    /// After the run has ended: waits for the file. @throws Error(Storage) where it does not hold the whole run
    RecorderHealth finish();

private:
    class File;
    Recorder* recorder() const; // null: no file is open

    const RecordingRequest request_;
    std::unique_ptr<GpuRecording> gpu_; // outlives the sink
    std::unique_ptr<TraceSink> sink_;
    File* file_ = nullptr; // the sink, where there is a file
};

} // namespace kvscope
