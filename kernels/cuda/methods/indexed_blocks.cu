#include "kernels/cuda/methods/indexed_blocks.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

__device__ inline int sequenceOf(const IndexedTokens& tokens, int i) {
    return tokens.oneSequence ? tokens.sequence : i;
}

__device__ inline const Bf16* keysOf(const IndexedBlocks& index, int sequence) {
    return index.keys + index.tokenFirst[sequence * index.kvHeads] / index.kvHeads * index.dim;
}

/// A warp per head of a token; the head behind the queries' is the key.
__global__ void __launch_bounds__(kThreads) placeKernel(IndexedKeysArgs a) {
    letNextKernelStart();
    const int lane = threadIdx.x % kWarp, item = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
    const int heads = a.index.heads + 1, dim = a.index.dim;
    if (item >= a.tokens.n * heads) return;
    const int token = item / heads, head = item % heads;
    const int sequence = sequenceOf(a.tokens, token);
    waitForEarlierKernels();
    if (a.tokens.active != nullptr && a.tokens.active[token] == 0) return;
    const int position = a.tokens.position[token];
    const float* const from = a.projected + std::size_t(item) * dim;
    const bool isKey = head == a.index.heads;
    const float* const weight = isKey ? a.keyNorm : a.queryNorm;
    float squares = 0;
    for (int c = lane; c < dim; c += kWarp) squares += from[c] * from[c];
    const float inverse = rsqrtf(warpSum(squares) / float(dim) + a.eps);
    float* const query = a.queries + (std::size_t(token) * a.index.heads + head) * dim;
    Bf16* const key = const_cast<Bf16*>(keysOf(a.index, sequence)) + std::size_t(position) * dim;
    const auto put = [&](int c, float value) {
        if (isKey)
            key[c] = __float2bfloat16(value);
        else
            query[c] = value;
    };
    const auto normed = [&](int c) { return from[c] * inverse * weight[c]; };
    const int half = a.rotated / 2;
    const std::size_t angles = std::size_t(a.ropeFirst[sequence] + position) * a.angles;
    for (int c = lane; c < half; c += kWarp) {
        const float cos = a.cos[angles + c], sin = a.sin[angles + c], low = normed(c), high = normed(c + half);
        put(c, low * cos - high * sin);
        put(c + half, high * cos + low * sin);
    }
    for (int c = a.rotated + lane; c < dim; c += kWarp) put(c, normed(c));
}

constexpr int kLanes = 8;                    // of a warp, which multiply one key
constexpr int kTogether = kThreads / kLanes; // keys that a thread block multiplies at once

/// A thread block per (block of keys, token). Shared memory: the token's queries, then each warp's best of each head.
__global__ void __launch_bounds__(kThreads) scoreKernel(IndexedScoreArgs a) {
    extern __shared__ float room[];
    letNextKernelStart();
    const int heads = a.index.heads, dim = a.index.dim, token = blockIdx.y;
    float* const best = room + heads * dim; // [heads, kWarps]
    waitForEarlierKernels();
    if (a.mark != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.tokens.active != nullptr && a.tokens.active[token] == 0) return;
    const int position = a.tokens.position[token], first = int(blockIdx.x) * a.index.blockSize;
    if (first > position) return;
    const float* const query = a.queries + std::size_t(token) * heads * dim;
    for (int i = threadIdx.x; i < heads * dim; i += kThreads) room[i] = query[i];
    __syncthreads();
    const Bf16* const keys = keysOf(a.index, sequenceOf(a.tokens, token)) + std::size_t(first) * dim;
    const int count = min(a.index.blockSize, position + 1 - first);
    const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kWarp;
    for (int head = 0; head < heads; ++head) {
        const float* const q = room + head * dim;
        float most = -INFINITY;
        // Every lane takes every round, because the sum is made by whole warps.
        for (int begin = 0; begin < count; begin += kTogether) {
            const int mine = begin + int(threadIdx.x) / kLanes;
            float sum = 0;
            if (mine < count)
                for (int c = lane * 8; c < dim; c += kLanes * 8) {
                    const uint4 eight = *reinterpret_cast<const uint4*>(keys + std::size_t(mine) * dim + c);
                    const std::uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
                    for (int p = 0; p < 4; ++p) {
                        sum = fmaf(lowHalf(pairs[p]), q[c + 2 * p], sum);
                        sum = fmaf(highHalf(pairs[p]), q[c + 2 * p + 1], sum);
                    }
                }
#pragma unroll
            for (int apart = kLanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            if (mine < count) most = fmaxf(most, sum);
        }
        for (int apart = kWarp / 2; apart >= kLanes; apart /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
        if (threadIdx.x % kWarp == 0) best[head * kWarps + warp] = most;
    }
    __syncthreads();
    const int served = a.index.kvHeads / heads;
    for (int g = threadIdx.x; g < a.index.kvHeads; g += kThreads) {
        const float* const of = best + g / served * kWarps;
        float most = of[0];
        for (int w = 1; w < kWarps; ++w) most = fmaxf(most, of[w]);
        a.scores[(std::size_t(token) * a.index.kvHeads + g) * a.maxBlocks + blockIdx.x] = most;
    }
}

} // namespace

void placeIndexedKeys(const Launch& how, const IndexedKeysArgs& args) {
    if (args.tokens.n == 0) return;
    const int items = args.tokens.n * (args.index.heads + 1);
    launch(how, {dim3(unsigned((items + kWarps - 1) / kWarps)), dim3(kThreads)}, placeKernel,
           "placing keys of the block indexer", args);
}

void scoreIndexedBlocks(const Launch& how, const IndexedScoreArgs& args) {
    if (args.tokens.n == 0 || args.blocks == 0) return;
    const std::size_t shared = std::size_t(args.index.heads * (args.index.dim + kWarps)) * sizeof(float);
    launch(how, {dim3(unsigned(args.blocks), unsigned(args.tokens.n)), dim3(kThreads), shared}, scoreKernel,
           "scoring blocks by the indexer", args);
}

} // namespace kvscope::cuda
