#include "core/cuda/gpu_clock.h"

#include "base/clock.h"
#include "kernels/cuda/linear/linear.h"

#include <limits>

namespace kvscope {

void GpuClock::calibrate(const cuda::Launch& launch, std::uint64_t* mark) {
    // Reads the host's clock, the GPU's timer and the host's clock again, several times, and uses the pair of host
    // times that lie closest together.
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 20; ++i) {
        cuda::check(cudaStreamSynchronize(launch.stream), "reading the GPU's clock");
        const std::int64_t before = steadyNowNs();
        cuda::stampNow(launch, mark);
        cuda::check(cudaStreamSynchronize(launch.stream), "reading the GPU's clock");
        const std::int64_t after = steadyNowNs();
        if (after - before >= best) continue;
        best = after - before;
        offset_ = before + (after - before) / 2 - std::int64_t(*mark);
    }
    originNs_ = steadyNowNs();
}

} // namespace kvscope
