// Parts of the kernels that rotate queries and keys.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

/// The two channels that are rotated together as pair number c: neighbours, or one of each half.
struct Pair {
    int low, high;
    __device__ Pair(bool interleaved, int c, int half)
        : low(interleaved ? 2 * c : c), high(interleaved ? 2 * c + 1 : c + half) {}
};

/// Writes a head's rotated pair c.
__device__ inline void rotatePair(const Pair& pair, float low, float high, float cos, float sin, __nv_bfloat16* to) {
    to[pair.low] = __float2bfloat16(low * cos - high * sin);
    to[pair.high] = __float2bfloat16(high * cos + low * sin);
}

/// 1/sqrt(mean(x^2) + eps) of one head, by one warp.
__device__ inline float inverseNorm(const float* x, int dim, float eps) {
    float sum = 0;
    for (int i = threadIdx.x % kWarp; i < dim; i += kWarp) sum = fmaf(x[i], x[i], sum);
    return rsqrtf(warpSum(sum) / float(dim) + eps);
}

} // namespace kvscope::cuda
