// Everything a recording adds about the GPU at level full: kernels, copies and CUDA calls through CUPTI, and the PCIe
// counters through CUPTI's PM sampling or NVML. What a machine lacks is left out; steps, selections and transfers are
// recorded without any of them.
#pragma once

#include "core/trace/gpu_trace.h"
#include "profiler/cupti/gpu_tracer.h"
#include "profiler/cupti/pcie_counting.h"
#include "profiler/record/gpu_counters.h"

#include <cstdint>
#include <memory>
#include <string>

namespace kvscope {

/// A recorder for SessionOptions::gpuTrace. A process has one at a time. It is made before the process's first CUDA
/// call, and outlives the session and the sink of its run.
class GpuRecording final : public GpuTrace {
public:
    /// calls: records CUDA calls as well, about a dozen spans a step. CUPTI makes their records in any case.
    explicit GpuRecording(bool calls = true, PcieCounting pcie = PcieCounting::Auto);
    /// Takes a tracer that was started elsewhere, for tests.
    GpuRecording(GpuTracing tracing, PcieCounting pcie);
    ~GpuRecording() override;
    GpuRecording(const GpuRecording&) = delete;
    GpuRecording& operator=(const GpuRecording&) = delete;

    /// Why kernels are not recorded, e.g. "another tool is already recording this process through CUPTI"; else empty.
    const std::string& refusal() const { return cupti_.refusal; }
    /// Chooses how the link is counted from the next step on. Called between runs.
    void countPcie(PcieCounting counting);
    /// When a step has begun: the reason why the link is counted in another way than was asked for; empty: it is not.
    const std::string& pcieRemark() const { return pcieRemark_; }

    void timesBeginAt(std::int64_t originNs) override { originNs_ = originNs; }
    void beginRun(TraceSink& sink) override;
    void atStage(int layer, StageId stage) override;
    void atStep(int step) override;
    void stepDone() override;
    void endRun() override;

private:
    void takeCounts(bool all);
    void remark(const std::string& sentence);

    GpuTracing cupti_;
    PcieCounting pcieCounting_;
    std::unique_ptr<GpuCounters> counters_;
    std::string pcieRemark_;
    bool countersAsked_ = false, pcieExplained_ = false;
    std::int64_t originNs_ = 0;
    TraceSink* sink_ = nullptr; // of the run, while one is on
    std::int64_t stepsDone_ = 0;
};

} // namespace kvscope
