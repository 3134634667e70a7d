// Everything a recording adds about the GPU at level full: kernels, copies and CUDA calls through CUPTI, the PCIe
// counters through NVML. Each is used where it is found; the steps, selections and transfers need neither.
#pragma once

#include "core/trace/gpu_trace.h"
#include "profiler/cupti/gpu_tracer.h"
#include "profiler/nvml/pcie_sampler.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class Recorder;

/// For SessionOptions::gpuTrace. One at a time in a process; outlives the session and its recorder.
class GpuRecording final : public GpuTrace {
public:
    /// calls: CUDA calls too. They cost a span each, a dozen a step; CUPTI counts them in any case.
    explicit GpuRecording(bool calls = true);
    ~GpuRecording() override;
    GpuRecording(const GpuRecording&) = delete;
    GpuRecording& operator=(const GpuRecording&) = delete;

    /// Why kernels are not recorded, e.g. "another tool is already recording this process through CUPTI"; else empty.
    const std::string& refusal() const { return cupti_.refusal; }
    /// Where counters go, and spans with what launched them; null: no counters, and spans to the engine's sink.
    void sendTo(Recorder* recorder) { recorder_ = recorder; }

    void atStage(int layer, std::string_view stage) override;
    void atStep(int step) override;
    std::vector<SpanRecord> collect(std::int64_t originNs, bool all) override;

private:
    GpuTracing cupti_;
    std::unique_ptr<PcieSampler> pcie_;
    Recorder* recorder_ = nullptr;
    bool pcieAsked_ = false, explained_ = false;
};

} // namespace kvscope
