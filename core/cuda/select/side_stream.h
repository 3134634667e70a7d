// A second stream of a step: what is launched there follows a fork and is joined before the step ends.
#pragma once

#include "kernels/cuda/check.h"

#include <cuda_runtime_api.h>

namespace kvscope {

cudaEvent_t newEvent();

class SideStream {
public:
    SideStream() = default;
    ~SideStream();
    SideStream(const SideStream&) = delete;
    SideStream& operator=(const SideStream&) = delete;

    void open();
    bool isOpen() const { return stream_ != nullptr; }
    cudaStream_t stream() const { return stream_; }
    /// Launches here that follow all that `from` has so far.
    cuda::Launch fork(const cuda::Launch& from);
    /// Launches on `to` that follow all that was launched here. There must have been something since the step began.
    cuda::Launch join(const cuda::Launch& to);

private:
    cudaStream_t stream_ = nullptr;
    cudaEvent_t fork_ = nullptr, join_ = nullptr;
};

} // namespace kvscope
