// The GPU's ceilings, measured in the same run as what is compared with them, and timing by events.
#pragma once

#include "core/cuda/device_memory.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"

#include <cstddef>
#include <functional>
#include <vector>

namespace kvscope::bench {

/// Copies the values to the GPU. @throws Error(Device)
template <class T> void upload(T* to, const std::vector<T>& from) {
    cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "preparing a benchmark");
}

/// A stream on the first GPU. @throws Error in a sentence where there is none
class Gpu {
public:
    Gpu();

    /// Seconds of `body`'s work on the stream: median of `repeats`, after one warm-up.
    double seconds(const std::function<void()>& body, int repeats = 7);
    /// Seconds of one replay of a graph of `body`.
    double graphSeconds(const std::function<void()>& body, int repeats = 20);
    /// Pure reads of 8 GiB (less on small cards) and of parts of them, bytes per second: the best rate of the process.
    double readBytesPerSecond();
    /// One pinned copy of 1 GiB to the device, bytes per second.
    double copyBytesPerSecond();

    cuda::Launch launch;

private:
    cuda::Stream stream_;
};

} // namespace kvscope::bench
