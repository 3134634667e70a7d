// A second stream of a step: what is launched there follows a fork and is joined before the step ends.
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
    /// Launches here that follow all that `from` has so far.
    cuda::Launch fork(const cuda::Launch& from);
    /// Launches on `to` that follow all that was launched here. There must have been something since the step began.
    cuda::Launch join(const cuda::Launch& to);

private:
    cuda::Event fork_, join_;
    cuda::Stream stream_; // last: it waits for its work before the events go
};

} // namespace kvscope
