// The GPU's timer, on which kernels stamp marks, beside the host's steady clock.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstdint>

namespace kvscope {

class GpuClock {
public:
    /// Compares both clocks; the session's times begin now. mark: host memory that the GPU may write. Waits.
    void calibrate(const cuda::Launch& launch, std::uint64_t* mark);

    /// When the session's times begin, on the steady clock.
    std::int64_t originNs() const { return originNs_; }
    /// A mark, relative to the origin.
    std::int64_t sinceOrigin(std::uint64_t mark) const { return std::int64_t(mark) + offset_ - originNs_; }

private:
    std::int64_t offset_ = 0; // steady clock minus GPU timer
    std::int64_t originNs_ = 0;
};

} // namespace kvscope
