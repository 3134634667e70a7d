// A second stream of a step. Kernels are launched on it after a fork, and the step's stream joins it before the step
// ends.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"

namespace kvscope {

class SideStream {
public:
    /// @throws Error(OutOfMemory | Device)
    void open();
    bool isOpen() const { return bool(stream_); }
    cudaStream_t stream() const { return stream_.get(); }
    /// @return how kernels are launched on this stream so that they wait for everything that `from` has so far
    cuda::Launch fork(const cuda::Launch& from);
    /// @return how kernels are launched on `to` so that they wait for everything that was launched on this stream. A
    /// fork must have come before in the same step.
    cuda::Launch join(const cuda::Launch& to);

private:
    cuda::Event fork_, join_;
    cuda::Stream stream_; // last, so that it waits for its work before the events are destroyed
};

} // namespace kvscope
