// Everything a recording adds about the GPU at level full: kernels, copies and CUDA calls through CUPTI, the PCIe
// counters through its PM sampling or NVML. Each is used where it is found; the steps, selections and transfers need
// none.
#pragma once

#include "core/trace/gpu_trace.h"
#include "profiler/cupti/gpu_tracer.h"
#include "profiler/cupti/pcie_counting.h"
#include "profiler/record/gpu_counters.h"

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
    explicit GpuRecording(bool calls = true, PcieCounting pcie = PcieCounting::Auto);
    ~GpuRecording() override;
    GpuRecording(const GpuRecording&) = delete;
    GpuRecording& operator=(const GpuRecording&) = delete;

    /// Why kernels are not recorded, e.g. "another tool is already recording this process through CUPTI"; else empty.
    const std::string& refusal() const { return cupti_.refusal; }
    /// From the next step on the link is counted so; between runs.
    void countPcie(PcieCounting counting);
    /// Once a step has begun: why the link is counted in another way than was asked for; else empty.
    const std::string& pcieRemark() const { return pcieRemark_; }
    /// Where counters go, and spans with what launched them; null: no counters, and spans to the engine's sink.
    void sendTo(Recorder* recorder) { recorder_ = recorder; }

    void atStage(int layer, std::string_view stage) override;
    void atStep(int step) override;
    std::vector<SpanRecord> collect(std::int64_t originNs, bool all) override;

private:
    GpuTracing cupti_;
    PcieCounting pcieCounting_;
    std::unique_ptr<GpuCounters> counters_;
    std::string pcieRemark_;
    Recorder* recorder_ = nullptr;
    bool countersAsked_ = false, kernelsExplained_ = false, countersExplained_ = false;
};

} // namespace kvscope
