// Converts times of the GPU's timer, which kernels write as marks, to times of the host's steady clock.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstdint>

namespace kvscope {

class GpuClock {
public:
    /// Compares both clocks, waiting for the GPU, and takes the present time as the origin of the session's times.
    /// mark: host memory that the GPU can write.
    void calibrate(const cuda::Launch& launch, std::uint64_t* mark);

    /// The origin of the session's times, in nanoseconds of the steady clock.
    std::int64_t originNs() const { return originNs_; }
    /// The time of a mark in nanoseconds after the origin.
    std::int64_t sinceOrigin(std::uint64_t mark) const { return std::int64_t(mark) + offset_ - originNs_; }

private:
    std::int64_t offset_ = 0; // steady clock minus GPU timer
    std::int64_t originNs_ = 0;
};

} // namespace kvscope
