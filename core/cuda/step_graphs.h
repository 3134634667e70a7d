// The kernels of a step as graphs, captured once: one for each report entry, since two steps may be in flight.
#pragma once

#include "core/cuda/step_report.h"
#include "kernels/cuda/device/owners.h"

#include <functional>

namespace kvscope {

class StepGraphs {
public:
    /// Opens the step's stream. kernels: launches those of a step that writes this report entry. With KVSCOPE_NO_GRAPH
    /// in the environment they are launched one by one, each inside its stage's NVTX range. @throws Error(OutOfMemory |
    /// Device)
    explicit StepGraphs(std::function<void(int entry)> kernels);

    cudaStream_t stream() const { return stream_.get(); }
    /// Once a step has been tried: plans and attributes must not be made while kernels are captured. Waits.
    void capture();
    /// Launches a step. What `copy` gets from here on follows it.
    void launch(int entry);
    void follow(int entry, cudaStream_t copy) const;

private:
    const std::function<void(int entry)> kernels_;
    const bool oneByOne_;
    cuda::Event done_[StepReports::kEntries];
    cuda::Executable graphs_[StepReports::kEntries];
    cuda::Stream stream_;
};

} // namespace kvscope
