// Ends a prompt: makes the low-rank form of its keys, landmarks, outliers, the store of its values and the pool.
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/device/ranking.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/methods/orthonormal.h"
#include "kernels/cuda/methods/shadow.h"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
/// Steps of the subspace iteration. Each multiplies the part of the directions that is wrong by a ratio of squared
/// singular values, of one that is left out to one that is kept.
constexpr int kIterations = 16;

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return __bfloat162float(x); }
__device__ inline void narrow(float x, float& to) { to = x; }
__device__ inline void narrow(float x, Bf16& to) { to = __float2bfloat16(x); }

constexpr int kTile = 64, kDeep = 16;

/// c[m, n] = sum over k of a(m, k) b(n, k), added in float32. kAcross: a is stored as [k, m] and b as [k, n]; else as
/// [m, k] and [n, k]. Grid (tiles of n, tiles of m).
template <bool kAcross, class A, class B, class C>
__global__ void __launch_bounds__(kThreads)
    productKernel(const A* a, int aStride, const B* b, int bStride, C* c, int cStride, int m, int n, int depth) {
    __shared__ float left[kDeep][kTile + 4], right[kDeep][kTile + 4];
    const int firstM = blockIdx.y * kTile, firstN = blockIdx.x * kTile;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    letNextKernelStart();
    waitForEarlierKernels();
    float sum[4][4] = {};
    for (int k = 0; k < depth; k += kDeep) {
        for (int i = threadIdx.x; i < kTile * kDeep; i += kThreads) {
            const int row = kAcross ? i % kTile : i / kDeep, deep = kAcross ? i / kTile : i % kDeep;
            const bool inside = k + deep < depth;
            const auto read = [&](const auto* from, int stride, int at, int count) {
                if (!inside || at >= count) return 0.f;
                return widen(kAcross ? from[std::size_t(k + deep) * stride + at]
                                     : from[std::size_t(at) * stride + k + deep]);
            };
            left[deep][row] = read(a, aStride, firstM + row, m);
            right[deep][row] = read(b, bStride, firstN + row, n);
        }
        __syncthreads();
#pragma unroll
        for (int deep = 0; deep < kDeep; ++deep) {
            const float4 x = *reinterpret_cast<const float4*>(&left[deep][ty * 4]),
                         y = *reinterpret_cast<const float4*>(&right[deep][tx * 4]);
            const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(xs[i], ys[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = firstM + ty * 4 + i, column = firstN + tx * 4 + j;
            if (row < m && column < n) narrow(sum[i][j], c[std::size_t(row) * cStride + column]);
        }
}

template <bool kAcross, class A, class B, class C>
void multiply(const Launch& how, const A* a, int aStride, const B* b, int bStride, C* c, int cStride, int m, int n,
              int depth) {
    launch(how, {dim3(unsigned((n + kTile - 1) / kTile), unsigned((m + kTile - 1) / kTile)), dim3(kThreads)},
           productKernel<kAcross, A, B, C>, "finding the keys' directions", a, aStride, b, bStride, c, cStride, m, n,
           depth);
}

/// Rearranges vectors [rank, kvHeads*dim] as basis [kvHeads, dim, paddedRank]. Grid (dim, kvHeads).
__global__ void basisKernel(const float* vectors, int rank, int width, int dim, int paddedRank, Bf16* basis) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int c = blockIdx.x, g = blockIdx.y;
    for (int r = threadIdx.x; r < paddedRank; r += blockDim.x)
        basis[(std::size_t(g) * dim + c) * paddedRank + r] =
            __float2bfloat16(r < rank ? vectors[std::size_t(r) * width + g * dim + c] : 0.f);
}

/// See keepPlainKeys. Grid (tokens).
__global__ void keepKernel(const float* qkv, int stride, int first, int width, Bf16* to) {
    letNextKernelStart();
    waitForEarlierKernels();
    for (int c = threadIdx.x; c < width; c += blockDim.x)
        to[std::size_t(blockIdx.x) * width + c] = __float2bfloat16(qkv[std::size_t(blockIdx.x) * stride + first + c]);
}

/// See keepBlockKeys. Grid (tokens, kvHeads), a thread per channel.
__global__ void keepBlocksKernel(AttentionShape shape, const Bf16* blocks, std::int64_t headStride, Bf16* to) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int t = blockIdx.x, g = blockIdx.y, c = threadIdx.x, bs = shape.blockSize, dim = shape.dim;
    to[(std::size_t(t) * shape.kvHeads + g) * dim + c] =
        blocks[std::size_t(g) * headStride + std::size_t(t / bs) * blockElements(bs, dim) + t % bs * dim + c];
}

/// Makes the mean key of a chunk, and finds the least cosine between it and a key of the chunk, whose negative is the
/// chunk's distance. Grid (chunks, kvHeads), a thread per channel.
__global__ void landmarkKernel(ShadowPromptArgs a) {
    __shared__ float mean[128], parts[4];
    const ShadowMemory& m = a.memory;
    const int chunk = blockIdx.x, g = blockIdx.y, c = threadIdx.x, dim = m.shape.dim, bs = m.shape.blockSize;
    const int head = a.sequence * m.shape.kvHeads + g, first = chunk * m.chunkTokens, lane = c % kWarp,
              warp = c / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* keys = a.blocks + std::size_t(g) * a.headStride + std::size_t(first / bs) * blockElements(bs, dim) +
                       std::size_t(first % bs) * dim; // a chunk never crosses the end of a block
    float sum = 0;
    for (int t = 0; t < m.chunkTokens; ++t) sum += __bfloat162float(keys[t * dim + c]);
    mean[c] = sum / float(m.chunkTokens);
    __syncthreads();
    float meanSquare = 0;
    for (int i = lane; i < dim; i += kWarp) meanSquare = fmaf(mean[i], mean[i], meanSquare);
    meanSquare = warpSum(meanSquare);
    float least = INFINITY;
    for (int t = warp; t < m.chunkTokens; t += dim / kWarp) {
        float product = 0, square = 0;
        for (int i = lane; i < dim; i += kWarp) {
            const float key = __bfloat162float(keys[t * dim + i]);
            product = fmaf(key, mean[i], product);
            square = fmaf(key, key, square);
        }
        product = warpSum(product);
        square = warpSum(square);
        least = fminf(least, product / fmaxf(1e-30f, sqrtf(square) * sqrtf(meanSquare)));
    }
    if (lane == 0) parts[warp] = least;
    __syncthreads();
    const std::size_t at = std::size_t(m.chunkFirst[head]) + chunk;
    m.landmarks[at * dim + c] = __float2bfloat16(mean[c]);
    if (c != 0) return;
    for (int w = 0; w < dim / kWarp; ++w) least = fminf(least, parts[w]);
    m.isOutlier[at] = 0;
    a.distance[std::size_t(g) * a.counts.chunks + chunk] = -least;
}

constexpr int kChoiceWarps = 32;

/// Marks the chunks of the largest distances as outliers and lists them in ascending order. Grid (kvHeads). Shared
/// memory: ranking keys [chunks].
__global__ void __launch_bounds__(kChoiceWarps* kWarp) outlierKernel(ShadowPromptArgs a) {
    extern __shared__ std::uint32_t keys[];
    __shared__ BlockCounter<kChoiceWarps>::Shared counts;
    constexpr int kAll = kChoiceWarps * kWarp;
    const ShadowMemory& m = a.memory;
    const int g = blockIdx.x, head = a.sequence * m.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    BlockCounter<kChoiceWarps> counter(counts);
    for (int i = threadIdx.x; i < a.counts.chunks; i += kAll)
        keys[i] = rankingKey(a.distance[std::size_t(g) * a.counts.chunks + i]);
    __syncthreads();
    std::uint8_t* flags = m.isOutlier + m.chunkFirst[head];
    takeLargest(keys, a.counts.chunks, a.counts.outliers, counter, [&](int i) { flags[i] = 1; });
    __syncthreads();
    const int perThread = (a.counts.chunks + kAll - 1) / kAll,
              begin = min(int(threadIdx.x) * perThread, a.counts.chunks), end = min(begin + perThread, a.counts.chunks);
    int mine = 0, all = 0;
    for (int i = begin; i < end; ++i) mine += flags[i];
    int at = counter.prefix(mine, all);
    for (int i = begin; i < end; ++i)
        if (flags[i] != 0) m.outlierChunks[std::size_t(head) * m.outliers + at++] = i;
}

/// Stores the values of each chunk as [dim][chunkTokens]. Grid (chunks, kvHeads).
__global__ void __launch_bounds__(128) valuesKernel(ShadowPromptArgs a) {
    const ShadowMemory& m = a.memory;
    const int chunk = blockIdx.x, g = blockIdx.y, dim = m.shape.dim, bs = m.shape.blockSize, size = m.chunkTokens;
    const int first = chunk * size, head = a.sequence * m.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* from = a.blocks + std::size_t(g) * a.headStride + std::size_t(first / bs) * blockElements(bs, dim) +
                       std::size_t(bs) * dim + first % bs;
    Bf16* to = m.values + (std::size_t(m.chunkFirst[head]) + chunk) * dim * size;
    if (size % 8 == 0) {
        for (int i = threadIdx.x; i < dim * size / 8; i += blockDim.x) {
            const int c = i * 8 / size, within = i * 8 % size;
            *reinterpret_cast<uint4*>(to + i * 8) =
                *reinterpret_cast<const uint4*>(from + std::size_t(c) * bs + within);
        }
        return;
    }
    for (int i = threadIdx.x; i < dim * size; i += blockDim.x) to[i] = from[std::size_t(i / size) * bs + i % size];
}

/// Copies the tokens of outliers and the local tokens into the pool. Grid (these tokens, kvHeads), a thread per
/// channel.
__global__ void poolKernel(ShadowPromptArgs a) {
    const ShadowCounts& counts = a.counts;
    const ShadowMemory& m = a.memory;
    const int i = blockIdx.x, g = blockIdx.y, c = threadIdx.x, dim = m.shape.dim, bs = m.shape.blockSize;
    const int head = a.sequence * m.shape.kvHeads + g, outlierTokens = counts.outliers * m.chunkTokens;
    letNextKernelStart();
    waitForEarlierKernels();
    const int token =
        i < outlierTokens
            ? m.outlierChunks[std::size_t(head) * m.outliers + i / m.chunkTokens] * m.chunkTokens + i % m.chunkTokens
            : counts.firstLocalToken + i - outlierTokens;
    const int at = counts.chosen * m.chunkTokens + i; // the pool token
    const Bf16* from = a.blocks + std::size_t(g) * a.headStride + std::size_t(token / bs) * blockElements(bs, dim);
    const std::size_t block = std::size_t(m.poolFirst[head]) + at / bs;
    Bf16* to = m.pool + block * blockElements(bs, dim);
    to[at % bs * dim + c] = from[token % bs * dim + c];
    to[std::size_t(bs) * dim + std::size_t(c) * bs + at % bs] =
        from[std::size_t(bs) * dim + std::size_t(c) * bs + token % bs];
    if (c == 0 && m.poolScores != nullptr)
        m.poolScores[block * bs + at % bs] = m.tokenScores[m.scoreFirst[head] + token];
}

} // namespace

void keepPlainKeys(const Launch& how, const float* qkv, int stride, int first, int width, int n, Bf16* to) {
    if (n == 0) return;
    launch(how, {dim3(unsigned(n)), dim3(kThreads)}, keepKernel, "keeping plain keys", qkv, stride, first, width, to);
}

void keepBlockKeys(const Launch& how, const AttentionShape& shape, const Bf16* blocks, std::int64_t headStride,
                   int tokens, Bf16* to) {
    if (tokens == 0) return;
    launch(how, {dim3(unsigned(tokens), unsigned(shape.kvHeads)), dim3(unsigned(shape.dim))}, keepBlocksKernel,
           "keeping keys", shape, blocks, headStride, to);
}

void lowerRank(const Launch& how, const ShadowRankArgs& args) {
    const ShadowMemory& m = args.memory;
    const int width = m.shape.kvHeads * m.shape.dim, rank = args.rank;
    multiply<true>(how, args.keys, width, args.keys, width, args.gram, width, width, width, args.tokens);
    float *now = args.vectors, *next = args.moved;
    drawRows(how, now, rank, width);
    for (int i = 0; i < kIterations; ++i) { // the matrix is symmetric: its rows are read where columns are meant
        multiply<false>(how, now, width, args.gram, width, next, width, rank, width, width);
        orthonormalRows(how, next, rank, width, args.products, Lost::Redrawn);
        std::swap(now, next);
    }
    // Once more: rounding left the rows not quite at right angles.
    orthonormalRows(how, now, rank, width, args.products, Lost::Zero);
    Bf16* basis = m.basis + std::size_t(args.sequence) * std::size_t(width) * std::size_t(m.paddedRank);
    launch(how, {dim3(unsigned(m.shape.dim), unsigned(m.shape.kvHeads)), dim3(128)}, basisKernel,
           "finding the keys' directions", static_cast<const float*>(now), rank, width, m.shape.dim, m.paddedRank,
           basis);
    // The product does not write the columns of u past the rank. They are zero since the session made the memory.
    Bf16* u = m.u + args.tokenFirst * m.paddedRank;
    multiply<false>(how, args.keys, width, static_cast<const float*>(now), width, u, m.paddedRank, args.tokens, rank,
                    width);
}

void enterPrompt(const Launch& how, const ShadowPromptArgs& args) {
    const ShadowMemory& m = args.memory;
    const unsigned heads = unsigned(m.shape.kvHeads), channels = unsigned(m.shape.dim);
    if (args.counts.chunks > 0) {
        launch(how, {dim3(unsigned(args.counts.chunks), heads), dim3(channels)}, landmarkKernel, "averaging chunks",
               args);
        const std::size_t shared = std::size_t(args.counts.chunks) * sizeof(std::uint32_t);
        if (shared > sharedRoom(how, outlierKernel)) refuseContext(args.counts.chunks, m.chunkTokens);
        allowShared(outlierKernel, shared, "preparing the outliers");
        if (args.counts.outliers > 0)
            launch(how, {dim3(heads), dim3(kChoiceWarps * kWarp), shared}, outlierKernel, "finding outliers", args);
        launch(how, {dim3(unsigned(args.counts.chunks), heads), dim3(128)}, valuesKernel, "storing values", args);
    }
    const int tokens = args.counts.outliers * m.chunkTokens + args.tokens - args.counts.firstLocalToken;
    if (tokens > 0) launch(how, {dim3(unsigned(tokens), heads), dim3(channels)}, poolKernel, "filling the pool", args);
}

} // namespace kvscope::cuda
