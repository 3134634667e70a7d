#include "kernels/cuda/methods/partial_keys.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostDim = 128;
constexpr int kGramRows = 16, kGramTokens = 8;

/// Grid (dim / kGramRows, kvHeads). A thread block adds up kGramRows rows of a KV head's matrix: for kGramTokens tokens
/// at a time it puts the mean query of each into shared memory, and then adds the products of their channels.
__global__ void __launch_bounds__(kThreads) gramKernel(QueryGramArgs a) {
    __shared__ float mean[kGramTokens][kMostDim];
    const int dim = a.shape.dim, group = a.shape.queryHeads / a.shape.kvHeads, g = blockIdx.y,
              firstRow = int(blockIdx.x) * kGramRows;
    constexpr int kMine = kGramRows * kMostDim / kThreads;
    letNextKernelStart();
    waitForEarlierKernels();
    double sum[kMine] = {};
    for (int first = 0; first < a.tokens; first += kGramTokens) {
        const int count = min(kGramTokens, a.tokens - first);
        for (int i = threadIdx.x; i < count * dim; i += kThreads) {
            const int token = i / dim, c = i % dim;
            const Bf16* q = a.q + (std::size_t(first + token) * a.shape.queryHeads + std::size_t(g) * group) * dim + c;
            float total = 0;
            for (int h = 0; h < group; ++h) total += __bfloat162float(q[h * dim]);
            mean[token][c] = total / float(group);
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < kMine; ++m) {
            const int at = m * kThreads + int(threadIdx.x);
            if (at >= kGramRows * dim) break;
            const int row = firstRow + at / dim, column = at % dim;
            for (int token = 0; token < count; ++token)
                sum[m] += double(mean[token][row]) * double(mean[token][column]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
        const int at = m * kThreads + int(threadIdx.x);
        if (at < kGramRows * dim) a.gram[(std::size_t(g) * dim + firstRow) * dim + at] += sum[m];
    }
}

/// @param key [dim] in shared or global memory; directions: [dim, width]
/// @return number i of the partial key: the sum over channels of key times direction i
template <class T> __device__ inline float along(const T* key, const float* directions, int dim, int width, int i) {
    float sum = 0;
#pragma unroll 8
    for (int c = 0; c < dim; ++c) sum = fmaf(float(key[c]), directions[c * width + i], sum);
    return sum;
}

__device__ inline Bf16* keysOf(const PartialKeys& partial, int head) {
    return partial.keys + (partial.tokenFirst != nullptr ? partial.tokenFirst[head] : head * partial.stride) *
                              std::int64_t(partial.width);
}

/// The product of a partial query, in shared memory, with a partial key.
__device__ inline float product(const float* query, const Bf16* key, int width) {
    float sum = 0;
    for (int i = 0; i < width; i += 8) {
        const uint4 piece = loadOnce(key + i);
        const float4 low = *reinterpret_cast<const float4*>(query + i),
                     high = *reinterpret_cast<const float4*>(query + i + 4);
        sum += low.x * lowHalf(piece.x) + low.y * highHalf(piece.x) + low.z * lowHalf(piece.y) +
               low.w * highHalf(piece.y) + high.x * lowHalf(piece.z) + high.y * highHalf(piece.z) +
               high.z * lowHalf(piece.w) + high.w * highHalf(piece.w);
    }
    return sum;
}

/// Grid (blocks, kvHeads*sharing). A thread block makes the partial keys of the tokens of one KV block.
__global__ void __launch_bounds__(kThreads) promptKernel(PartialPromptArgs a) {
    const int dim = a.shape.dim, bs = a.shape.blockSize, width = a.partial.width, g = blockIdx.y / a.partial.sharing,
              head = a.sequence * a.shape.kvHeads * a.partial.sharing + int(blockIdx.y), first = int(blockIdx.x) * bs;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* keys = a.blocks + std::size_t(g) * a.headStride + std::size_t(blockIdx.x) * blockElements(bs, dim);
    const float* directions = a.partial.directions + std::size_t(head) * dim * width;
    Bf16* to = keysOf(a.partial, head) + std::size_t(first) * width;
    for (int i = threadIdx.x; i < min(bs, a.tokens - first) * width; i += kThreads)
        to[i] = __float2bfloat16(along(keys + std::size_t(i / width) * dim, directions, dim, width, i % width));
}

/// Grid (rows*kvHeads*sharing). A thread block makes the partial key of its row's new token.
__global__ void __launch_bounds__(kMostDim) appendKernel(PartialAppendArgs a) {
    const int head = blockIdx.x, item = head / a.partial.sharing, row = item / a.shape.kvHeads, dim = a.shape.dim,
              width = a.partial.width;
    letNextKernelStart();
    const int position = a.position[row];
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (!active) return;
    const float* directions = a.partial.directions + std::size_t(head) * dim * width;
    Bf16* to = keysOf(a.partial, head) + std::size_t(position) * width;
    for (int i = threadIdx.x; i < width; i += kMostDim)
        to[i] = __float2bfloat16(along(a.newKey + std::size_t(item) * dim, directions, dim, width, i));
}

/// Grid (splits, rows*kvHeads). A thread block adds up the queries of the KV head's group and takes the sum along the
/// directions. Its warps then score the KV blocks, each warp one block at a time.
__global__ void __launch_bounds__(kThreads) scoreKernel(PartialScoreArgs a) {
    __shared__ float query[kMostDim];
    __shared__ __align__(16) float partial[kMostDim];
    const int head = blockIdx.y, row = head / a.shape.kvHeads, dim = a.shape.dim, width = a.partial.width,
              bs = a.shape.blockSize, group = a.shape.queryHeads / a.shape.kvHeads;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    letNextKernelStart();
    const int position = a.position[row];
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (!active) return;
    const Bf16* q = a.q + std::size_t(head) * group * dim;
    for (int c = threadIdx.x; c < dim; c += kThreads) {
        float sum = 0;
        for (int h = 0; h < group; ++h) sum += __bfloat162float(q[h * dim + c]);
        query[c] = sum;
    }
    __syncthreads();
    const float* directions = a.partial.directions + std::size_t(head) * dim * width;
    for (int i = threadIdx.x; i < width; i += kThreads) partial[i] = along(query, directions, dim, width, i);
    __syncthreads();
    const int blocks = position / bs + 1;
    const Bf16* keys = keysOf(a.partial, head);
    float* scores = a.scores + std::size_t(head) * a.maxBlocks;
    for (int b = int(blockIdx.x) * kWarps + warp; b < blocks; b += int(gridDim.x) * kWarps) {
        const int first = b * bs, end = min(first + bs, position);
        float best = -INFINITY;
        for (int token = first + lane; token < end; token += kWarp) {
            best = fmaxf(best, product(partial, keys + std::size_t(token) * width, width));
        }
        best = warpMax(best);
        if (lane == 0) scores[b] = best;
    }
}

/// Grid (splits, rows*queryHeads). A thread block takes the query along the directions. Its threads then score the
/// tokens, each thread one token at a time.
__global__ void __launch_bounds__(kThreads) scoreTokensKernel(PartialTokenScoreArgs a) {
    __shared__ __align__(16) float partial[kMostDim];
    const int head = blockIdx.y, row = head / a.shape.queryHeads, dim = a.shape.dim, width = a.partial.width;
    letNextKernelStart();
    const int position = a.position[row];
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (!active) return;
    const float* directions = a.partial.directions + std::size_t(head) * dim * width;
    for (int i = threadIdx.x; i < width; i += kThreads)
        partial[i] = a.scale * along(a.q + std::size_t(head) * dim, directions, dim, width, i);
    __syncthreads();
    const Bf16* keys = keysOf(a.partial, head);
    float* scores = a.scores + std::size_t(head) * a.stride;
    for (int token = int(blockIdx.x) * kThreads + int(threadIdx.x); token < position;
         token += int(gridDim.x) * kThreads)
        scores[token] = product(partial, keys + std::size_t(token) * width, width);
}

/// Grid (queryHeads), a thread per vector. The thread block puts one query after the other into shared memory, and each
/// thread adds the length of the query along its vector. The order of the tokens is fixed, so that every run gives the
/// same sums.
__global__ void __launch_bounds__(kMostDim) alongKernel(AlongArgs a) {
    __shared__ float query[kMostDim];
    const int h = blockIdx.x, i = threadIdx.x, dim = a.shape.dim;
    letNextKernelStart();
    waitForEarlierKernels();
    const float* vector = a.vectors + (std::size_t(h) * dim + i) * dim;
    float own[kMostDim];
    for (int c = 0; c < dim; ++c) own[c] = vector[c];
    float sum = a.sums[h * dim + i];
    for (int token = 0; token < a.tokens; ++token) {
        query[i] = __bfloat162float(a.q[(std::size_t(token) * a.shape.queryHeads + h) * dim + i]);
        __syncthreads();
        float length = 0;
#pragma unroll 8
        for (int c = 0; c < dim; ++c) length = fmaf(own[c], query[c], length);
        sum += fabsf(length);
        __syncthreads();
    }
    a.sums[h * dim + i] = sum;
}

} // namespace

void addQueryGram(const Launch& how, const QueryGramArgs& args) {
    checkAttentionShape(args.shape);
    if (args.tokens == 0) return;
    launch(how, {dim3(unsigned(args.shape.dim / kGramRows), unsigned(args.shape.kvHeads)), dim3(kThreads)}, gramKernel,
           "adding up the queries", args);
}

void keepPartialPrompt(const Launch& how, const PartialPromptArgs& args) {
    checkAttentionShape(args.shape);
    if (args.tokens == 0) return;
    const int blocks = (args.tokens + args.shape.blockSize - 1) / args.shape.blockSize;
    launch(how, {dim3(unsigned(blocks), unsigned(args.shape.kvHeads * args.partial.sharing)), dim3(kThreads)},
           promptKernel, "keeping partial keys", args);
}

void appendPartialKey(const Launch& how, const PartialAppendArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads * args.partial.sharing)), dim3(kMostDim)}, appendKernel,
           "keeping a partial key", args);
}

void scorePartialKeys(const Launch& how, const PartialScoreArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const int heads = args.rows * args.shape.kvHeads, most = (args.maxBlocks + kWarps - 1) / kWarps;
    const int splits = std::clamp(how.multiprocessors * 4 / heads, 1, most);
    launch(how, {dim3(unsigned(splits), unsigned(heads)), dim3(kThreads)}, scoreKernel, "scoring partial keys", args);
}

void scorePartialTokens(const Launch& how, const PartialTokenScoreArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const int heads = args.rows * args.shape.queryHeads, most = (args.maxTokens + kThreads - 1) / kThreads;
    const int splits = std::clamp(how.multiprocessors * 4 / heads, 1, std::max(1, most));
    launch(how, {dim3(unsigned(splits), unsigned(heads)), dim3(kThreads)}, scoreTokensKernel, "scoring partial keys",
           args);
}

void addLengthsAlong(const Launch& how, const AlongArgs& args) {
    checkAttentionShape(args.shape);
    if (args.tokens == 0) return;
    launch(how, {dim3(unsigned(args.shape.queryHeads)), dim3(unsigned(args.shape.dim))}, alongKernel,
           "measuring the queries", args);
}

} // namespace kvscope::cuda
