// The block index takes a decoded token: incremental windows and ranges.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/token.h"

namespace kvscope::cuda {

/// newKey: [dim] as stored, in shared memory, written before a barrier. By a whole block of threads.
__device__ inline void appendToIndex(const DeviceIndex& index, int head, int position, int bs, int dim,
                                     const float* newKey, float newScore) {
    const int kThreads = blockDim.x;
    if (index.ranges != nullptr) {
        Bf16* range = index.ranges + std::size_t(index.blockFirst[head] + position / bs) * 2 * dim;
        for (int c = threadIdx.x; c < dim; c += kThreads) {
            const float key = newKey[c];
            const bool first = position % bs == 0;
            range[c] = __float2bfloat16(first ? key : fminf(__bfloat162float(range[c]), key));
            range[dim + c] = __float2bfloat16(first ? key : fmaxf(__bfloat162float(range[dim + c]), key));
        }
    }
    const int tokens = position + 1;
    const bool completes = tokens >= index.kernel && (tokens - index.kernel) % index.stride == 0;
    const int window = completes ? (tokens - index.kernel) / index.stride : 0, start = window * index.stride;
    const float share = 1.f / float(index.kernel);
    if (index.recentKeys != nullptr) {
        Bf16* ring = index.recentKeys + std::size_t(head) * index.kernel * dim;
        for (int c = threadIdx.x; c < dim; c += kThreads) { // a thread owns its channel of the ring
            ring[position % index.kernel * dim + c] = __float2bfloat16(newKey[c]);
            if (!completes) continue;
            // In token order; the ring begins at start, and many loads must be in flight.
            float sum = 0;
            int slot = start % index.kernel;
            constexpr int kTogether = 16;
            for (int first = 0; first < index.kernel; first += kTogether) {
                Bf16 key[kTogether];
#pragma unroll
                for (int t = 0; t < kTogether; ++t) {
                    key[t] = ring[min(slot, index.kernel - 1) * dim + c];
                    if (first + t + 1 < index.kernel) slot = slot + 1 == index.kernel ? 0 : slot + 1;
                }
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    if (first + t < index.kernel) sum += __bfloat162float(key[t]);
            }
            index.pooledKeys[std::size_t(index.windowFirst[head] + window) * dim + c] = __float2bfloat16(sum * share);
        }
    }
    if (index.recentScores != nullptr && threadIdx.x < kWarp) { // one warp
        float* ring = index.recentScores + std::size_t(head) * index.kernel;
        const int lane = threadIdx.x, newest = position % index.kernel;
        const float score = index.exponentiates ? expf(newScore) : newScore;
        float sum = 0;
        if (completes)
            for (int t = lane; t < index.kernel; t += kWarp) sum += t == newest ? score : ring[t];
        sum = warpSum(sum);
        if (lane == 0) {
            ring[newest] = score;
            if (completes) index.pooledScores[index.windowFirst[head] + window] = sum * share;
        }
    }
}

} // namespace kvscope::cuda
