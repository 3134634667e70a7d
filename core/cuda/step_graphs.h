// The step graphs: the kernels of a decode step, captured once for each report entry. There are two entries because two
// steps may be in flight.
#pragma once

#include "core/cuda/step_report.h"
#include "kernels/cuda/device/owners.h"

#include <functional>

namespace kvscope {

class StepGraphs {
public:
    /// kernels: launches the kernels of a step that writes this report entry. With KVSCOPE_NO_GRAPH in the environment
    /// there are no graphs: every step launches its kernels one by one, each inside its stage's NVTX range.
    explicit StepGraphs(std::function<void(int entry)> kernels);
    /// Opens the stream of the steps. @throws Error(OutOfMemory | Device)
    void open();

    cudaStream_t stream() const { return stream_.get(); }
    /// Captures the graphs. A step must have run before, because cuBLASLt's plans and the attributes of kernels must
    /// not be made during a capture. Waits.
    void capture();
    /// Launches a step.
    void launch(int entry);
    /// Makes what is launched on `copy` from now on wait for the step launched last.
    void follow(int entry, cudaStream_t copy) const;

private:
    const std::function<void(int entry)> kernels_;
    const bool oneByOne_;
    cuda::Event done_[StepReports::kEntries];
    cuda::Executable graphs_[StepReports::kEntries];
    cuda::Stream stream_;
};

} // namespace kvscope
