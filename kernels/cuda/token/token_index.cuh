// How a decoded token enters the cache: where its key and value go, its eviction score, and its entries in the block
// index.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/token/token.h"

namespace kvscope::cuda {

__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

/// cos and sin of a decoded token, one number for each pair of channels.
struct Angles {
    const float *cos, *sin;
    __device__ Angles(const AppendArgs& a, int row, int position, int pairs)
        : cos(a.cos + partFirst(a.cosFirst, a.cosFirst != nullptr ? row : a.ropeFirst[row], pairs) +
              std::int64_t(position) * pairs),
          sin(a.sin + partFirst(a.sinFirst, a.sinFirst != nullptr ? row : a.ropeFirst[row], pairs) +
              std::int64_t(position) * pairs) {}
};

/// Where a head's new key and value go; the value's channels lie valueStride apart.
struct TokenPlace {
    Bf16 *key, *value;
    int valueStride = 1;
    __device__ TokenPlace(const AppendArgs& a, int head, int position) {
        const int dim = a.shape.dim, bs = a.shape.blockSize;
        if (a.blocks == nullptr) {
            key = a.newKey + std::size_t(head) * dim;
            value = a.newValue + std::size_t(head) * dim;
            return;
        }
        Bf16* block = a.blocks + std::size_t(blockOf(a, head, position / bs)) * blockElements(bs, dim);
        key = block + position % bs * dim;
        value = block + std::size_t(bs) * dim + position % bs * (a.valuesByToken ? dim : 1);
        valueStride = a.valuesByToken ? 1 : bs;
    }

private:
    __device__ static std::int64_t blockOf(const AppendArgs& a, int head, int newest) {
        if (a.newestOnly) return head;
        return a.headFirst[head] +
               (a.listSlot != nullptr ? a.listSlot[head * a.capacity + a.listCount[head] - 1] : newest);
    }
};

/// The window that a token at this position completes, or -1.
__device__ inline int completedWindow(const DeviceIndex& index, int position) {
    const int beyond = position + 1 - index.kernel;
    return beyond >= 0 && beyond % index.stride == 0 ? beyond / index.stride : -1;
}

/// Enters one channel of the new key, rounded as it is stored, into the ranges and pooled keys. One thread calls this
/// for a channel.
__device__ inline void appendChannel(const DeviceIndex& index, int head, int position, int bs, int dim, int c,
                                     float key) {
    if (index.ranges != nullptr) {
        Bf16* range = index.ranges + std::size_t(index.blockFirst[head] + position / bs) * 2 * dim;
        const bool first = position % bs == 0;
        range[c] = __float2bfloat16(first ? key : fminf(__bfloat162float(range[c]), key));
        range[dim + c] = __float2bfloat16(first ? key : fmaxf(__bfloat162float(range[dim + c]), key));
    }
    if (index.recentKeys == nullptr) return;
    Bf16* ring = index.recentKeys + partFirst(index.recentKeyFirst, head, index.kernel * dim);
    ring[position % index.kernel * dim + c] = __float2bfloat16(key);
    const int window = completedWindow(index, position);
    if (window < 0) return;
    // Adds the window's keys up in the order of their tokens, beginning at the window's first slot of the ring. Sixteen
    // loads are in flight at a time.
    float sum = 0;
    int slot = window * index.stride % index.kernel;
    constexpr int kTogether = 16;
    for (int first = 0; first < index.kernel; first += kTogether) {
        Bf16 recent[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            recent[t] = ring[min(slot, index.kernel - 1) * dim + c];
            if (first + t + 1 < index.kernel) slot = slot + 1 == index.kernel ? 0 : slot + 1;
        }
#pragma unroll
        for (int t = 0; t < kTogether; ++t)
            if (first + t < index.kernel) sum += __bfloat162float(recent[t]);
    }
    index.pooledKeys[std::size_t(index.windowFirst[head] + window) * dim + c] =
        __float2bfloat16(sum * (1.f / float(index.kernel)));
}

/// Enters the new token's score into the pooled scores. kLanes threads call this together: one, or a warp.
template <int kLanes>
__device__ inline void appendScore(const DeviceIndex& index, int head, int position, float newScore, int lane) {
    if (index.recentScores == nullptr) return;
    float* ring = index.recentScores + partFirst(index.recentScoreFirst, head, index.kernel);
    const int newest = position % index.kernel, window = completedWindow(index, position);
    const float score = index.exponentiates ? expf(newScore) : newScore;
    float sum = 0;
    if (window >= 0) {
#pragma unroll 8
        for (int t = lane; t < index.kernel; t += kLanes) sum += t == newest ? score : ring[t];
    }
    if constexpr (kLanes > 1) sum = warpSum(sum);
    if (lane != 0) return;
    ring[newest] = score;
    if (window >= 0) index.pooledScoresOf(head)[window] = sum * (1.f / float(index.kernel));
}

/// Enters a new token into the block index. All threads of a thread block call this. newKey: [dim] in shared memory,
/// rounded as it is stored, complete since a barrier.
__device__ inline void appendToIndex(const DeviceIndex& index, int head, int position, int bs, int dim,
                                     const float* newKey, float newScore) {
    if (index.ranges != nullptr || index.recentKeys != nullptr)
        for (int c = threadIdx.x; c < dim; c += blockDim.x) appendChannel(index, head, position, bs, dim, c, newKey[c]);
    if (threadIdx.x < kWarp) appendScore<kWarp>(index, head, position, newScore, int(threadIdx.x));
}

} // namespace kvscope::cuda
