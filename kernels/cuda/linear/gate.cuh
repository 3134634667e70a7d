// What a feed-forward makes of gate and up, for the kernels that multiply with both.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/linear/linear.h"

namespace kvscope::cuda {

/// See GateRule. The limit is the same for all threads.
__device__ inline float gated(float gate, float up, const GateRule& rule) {
    if (rule.limit == 0) return silu(gate) * up;
    const float bounded = fminf(gate, rule.limit);
    return (fminf(fmaxf(up, -rule.limit), rule.limit) + 1.f) * bounded / (1.f + __expf(-rule.slope * bounded));
}

} // namespace kvscope::cuda
