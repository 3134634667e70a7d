// For hopper_prefill and hopper_blocks: the running softmax of a warpgroup's 64 queries, in the registers where its
// products arrive (see warpgroup.cuh), and how results leave them.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace kvscope::cuda {

constexpr int kTileKeys = 128; // tokens of a key tile of hopper_prefill

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ inline float exp2Approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// What a warpgroup has accumulated for its 64 query tokens. A thread holds parts of the rows l/4 and l/4 + 8 of its
/// warp; maxima are those of the raw products, sums are of this thread's columns.
template <int kDim> struct Running {
    float out[kDim / 2];
    float maximum[2], sum[2];
    __device__ void clear() {
#pragma unroll
        for (float& value : out) value = 0;
        maximum[0] = maximum[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }
    __device__ void scale(const float (&factor)[2]) {
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) out[i] *= factor[i / 2 % 2];
    }
};

/// Masks by position: this thread's rows are the query positions `row` and row + 8, its first key is `key`.
__device__ inline void maskLogits(float (&logits)[64], int row, int key, unsigned reach) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
        if (unsigned(row + i / 2 % 2 * 8 - (key + i / 4 * 8 + i % 2)) >= reach) logits[i] = -INFINITY;
}

/// Takes a key tile's products into the running maxima. shift: the caller subtracts it from the scaled products before
/// it takes exponentials. factor: the caller multiplies the results so far by it. scaleLog2: the scale over ln 2.
/// kMasked: a row may have seen no key yet.
template <bool kMasked, int kDim, int kCount>
__device__ inline void findMaxima(const float (&logits)[kCount], Running<kDim>& running, float scaleLog2,
                                  float (&shift)[2], float (&factor)[2]) {
    float maxima[4] = {running.maximum[0], running.maximum[1], logits[1], logits[3]};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        const int h = i / 2 % 2 + i % 2 * 2;
        maxima[h] = fmaxf(maxima[h], logits[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float maximum = fmaxf(maxima[h], maxima[h + 2]);
        maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
        shift[h] = (kMasked && maximum == -INFINITY ? 0.f : maximum) * scaleLog2;
        factor[h] = exp2Approx(fmaf(running.maximum[h], scaleLog2, -shift[h]));
        running.maximum[h] = maximum;
    }
}

/// Leaves the exponentials of one of this thread's rows in the place of its products, and adds them to the row's sum.
template <int kRow, int kDim, int kCount>
__device__ inline void weigh(float (&logits)[kCount], Running<kDim>& running, float scaleLog2, const float (&shift)[2],
                             const float (&factor)[2]) {
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
        float& logit = logits[i / 2 * 4 + kRow * 2 + i % 2];
        logit = exp2Approx(fmaf(logit, scaleLog2, -shift[kRow]));
        sums[i % 2] += logit;
    }
    running.sum[kRow] = fmaf(running.sum[kRow], factor[kRow], sums[0] + sums[1]);
}

template <int kCount>
__device__ inline void packWeights(const float (&weights)[kCount], std::uint32_t (&packed)[kCount / 8][4]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) packed[i / 4][i % 4] = packBf16(weights[2 * i], weights[2 * i + 1]);
}

/// Four lanes hold a row of 32 channels as four times 2 neighbouring channels of every 8; afterwards lane `quad` of
/// them holds the 8 neighbouring channels from 8*quad on.
__device__ inline void turnWords(std::uint32_t (&words)[4], int quad) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if ((k & bit) != 0) continue;
            const bool upper = (quad & bit) != 0;
            const std::uint32_t received =
                __shfl_xor_sync(0xffffffffu, upper ? words[k] : words[k + bit], unsigned(bit));
            (upper ? words[k] : words[k + bit]) = received;
        }
}

#endif

} // namespace kvscope::cuda
