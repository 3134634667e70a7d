// Products of vectors whose pieces lie with the lanes of a warp.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

/// The product of a key and a query whose pieces of 16 bytes lie with neighbouring lanes, in all of them.
template <int kLanes> __device__ inline float dotOverLanes(const uint4& k, const Bf16* query) {
    const uint4 x = *reinterpret_cast<const uint4*>(query);
    float dot = lowHalf(k.x) * lowHalf(x.x) + highHalf(k.x) * highHalf(x.x) + lowHalf(k.y) * lowHalf(x.y) +
                highHalf(k.y) * highHalf(x.y) + lowHalf(k.z) * lowHalf(x.z) + highHalf(k.z) * highHalf(x.z) +
                lowHalf(k.w) * lowHalf(x.w) + highHalf(k.w) * highHalf(x.w);
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
    return dot;
}

} // namespace kvscope::cuda
