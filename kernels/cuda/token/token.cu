#include "kernels/cuda/token/token.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/token/rotation.cuh"
#include "kernels/cuda/token/token_index.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostHeads = 32; // query heads of a KV head, see checkAttentionShape

__global__ void __launch_bounds__(kThreads)
    embedKernel(const Bf16* table, int cols, const std::int32_t* ids, float* x, float scale, std::uint32_t* clear,
                int clearCount, std::uint64_t* mark) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) stamp(mark);
        for (int i = threadIdx.x; i < clearCount; i += kThreads) clear[i] = 0;
    }
    const Bf16* from = table + std::size_t(ids[blockIdx.x]) * cols;
    float* to = x + std::size_t(blockIdx.x) * cols;
    for (int i = threadIdx.x; i < cols; i += kThreads) to[i] = scale * __bfloat162float(from[i]);
}

/// gain * softplus(delta . v) over the values of all KV heads of one token, by one warp.
__device__ inline float evictionScore(const EvictionHead& eviction, const float* values, int g, int width) {
    const float* delta = eviction.delta + std::size_t(g) * width;
    float sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x % kWarp; i < width; i += kWarp) sum = fmaf(delta[i], values[i], sum);
    return eviction.gain[g] * softplus(warpSum(sum));
}

/// Rotates and stores the queries of a KV head. A thread takes the same pair of channels of several query heads, which
/// lie kThreads / (dim / 2) heads apart; kThreads is a multiple of dim / 2.
template <bool kNormed>
__device__ void rotateQueries(const AppendArgs& a, const float* in, Bf16* q, int group, float cos, float sin,
                              const float* inverse) {
    const int dim = a.shape.dim, half = dim / 2, step = kThreads / half;
    const Pair pair(a.interleaved, int(threadIdx.x) % half, half);
    constexpr int kTogether = 4; // loads in flight before the first store
    for (int first = int(threadIdx.x) / half; first < group; first += step * kTogether) {
        float x[kTogether], y[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            const int h = min(first + t * step, group - 1);
            x[t] = in[h * dim + pair.low], y[t] = in[h * dim + pair.high];
            if constexpr (kNormed) {
                x[t] *= inverse[h] * a.norms.query[pair.low];
                y[t] *= inverse[h] * a.norms.query[pair.high];
            }
        }
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            const int h = first + t * step;
            if (h >= group) break;
            q[h * dim + pair.low] = __float2bfloat16(x[t] * cos - y[t] * sin);
            q[h * dim + pair.high] = __float2bfloat16(y[t] * cos + x[t] * sin);
        }
    }
}

/// Grid (kvHeads, rows, 2). One thread block takes a KV head's new key, value and eviction score and enters them into
/// the block index; another takes the head's queries. Key, value and score are made by different warps, so that no warp
/// waits for two reads one after the other. kNormed: heads pass their RMS norms first.
template <bool kNormed> __global__ void __launch_bounds__(kThreads) appendKernel(AppendArgs a) {
    extern __shared__ float newKey[]; // [dim] as stored
    __shared__ float newScore;
    __shared__ float inverse[kNormed ? kMostHeads : 1]; // of the queries, or of the key
    const int g = blockIdx.x, row = blockIdx.y, dim = a.shape.dim, half = dim / 2;
    const int group = a.shape.queryHeads / a.shape.kvHeads, qWidth = a.shape.queryHeads * dim,
              kvWidth = a.shape.kvHeads * dim;
    const bool ofQueries = blockIdx.z == 1, reports = g == 0 && row == 0 && !ofQueries && threadIdx.x == 0;
    const int warp = int(threadIdx.x) / kWarp, thread = int(threadIdx.x);
    letNextKernelStart();
    // Positions change only at a step's end, so they may be read before the wait.
    const int position = a.position[row], head = row * a.shape.kvHeads + g, bs = a.shape.blockSize;
    const bool active = a.active == nullptr || a.active[row] != 0;
    const Angles angles(a, row, position, half);
    const float cos = angles.cos[thread % half], sin = angles.sin[thread % half];
    waitForEarlierKernels();
    if (reports) stamp(a.marks[0]);
    if (!active) return;
    const float* in = a.qkv + std::size_t(row) * (qWidth + 2 * kvWidth);
    const float *queries = in + std::size_t(g) * group * dim, *keys = in + qWidth + g * dim;
    if constexpr (kNormed) {
        for (int h = warp; h < (ofQueries ? group : 1); h += kWarps) {
            const float value = inverseNorm(ofQueries ? queries + std::size_t(h) * dim : keys, dim, a.norms.eps);
            if (thread % kWarp == 0) inverse[h] = value;
        }
        __syncthreads();
    }
    if (ofQueries) {
        Bf16* q = a.q + std::size_t(row) * qWidth + std::size_t(g) * group * dim;
        return rotateQueries<kNormed>(a, queries, q, group, cos, sin, inverse);
    }
    const float* values = in + qWidth + kvWidth;
    const TokenPlace place(a, head, position);
    constexpr int kScoreWarp = kWarps - 1;
    if (thread < half) {
        const Pair pair(a.interleaved, thread, half);
        float x = keys[pair.low], y = keys[pair.high];
        if constexpr (kNormed) {
            x *= inverse[0] * a.norms.key[pair.low];
            y *= inverse[0] * a.norms.key[pair.high];
        }
        const Bf16 low = __float2bfloat16(x * cos - y * sin), high = __float2bfloat16(y * cos + x * sin);
        place.key[pair.low] = low;
        place.key[pair.high] = high;
        if (a.blocks != nullptr && a.newKey != nullptr) {
            a.newKey[std::size_t(head) * dim + pair.low] = low;
            a.newKey[std::size_t(head) * dim + pair.high] = high;
        }
        newKey[pair.low] = __bfloat162float(low);
        newKey[pair.high] = __bfloat162float(high);
    } else if (warp < kScoreWarp) {
        for (int c = thread - half; c < dim; c += kScoreWarp * kWarp - half) {
            const Bf16 value = __float2bfloat16(values[g * dim + c]);
            place.value[c * place.valueStride] = value;
            if (a.blocks != nullptr && a.newValue != nullptr) a.newValue[std::size_t(head) * dim + c] = value;
        }
    } else if (a.eviction.gain != nullptr) {
        const float score = evictionScore(a.eviction, values, g, kvWidth);
        if (thread % kWarp == 0) {
            newScore = score;
            a.index.tokenScores[a.index.tokenFirst[head] + position] = score;
        }
    }
    __syncthreads();

    // The block index: incremental windows and ranges.
    if (reports) stamp(a.marks[1]);
    appendToIndex(a.index, head, position, bs, dim, newKey, newScore);
}

constexpr int kPromptTokens = 8; // tokens of a thread block: one 16-byte piece of the transposed values

/// Prompt: normalises the queries and keys of the projections in place. Grid (tokens), a warp per head.
__global__ void __launch_bounds__(kThreads) headNormKernel(PromptArgs a) {
    const int dim = a.shape.dim, heads = a.shape.queryHeads + a.shape.kvHeads, width = (heads + a.shape.kvHeads) * dim;
    letNextKernelStart();
    waitForEarlierKernels();
    float* in = const_cast<float*>(a.qkv) + std::size_t(blockIdx.x) * width;
    for (int h = threadIdx.x / kWarp; h < heads; h += kWarps) {
        float* x = in + std::size_t(h) * dim;
        const float* weight = h < a.shape.queryHeads ? a.norms.query : a.norms.key;
        const float inverse = inverseNorm(x, dim, a.norms.eps);
        for (int i = threadIdx.x % kWarp; i < dim; i += kWarp) x[i] *= inverse * weight[i];
    }
}

/// Grid (token groups, kvHeads). firstPosition is a multiple of 8, because pieces begin where a block begins.
__global__ void __launch_bounds__(kThreads) promptKernel(PromptArgs a) {
    const int g = blockIdx.y, dim = a.shape.dim, half = dim / 2, bs = a.shape.blockSize;
    const int group = a.shape.queryHeads / a.shape.kvHeads, qWidth = a.shape.queryHeads * dim,
              kvWidth = a.shape.kvHeads * dim;
    const int width = qWidth + 2 * kvWidth, first = blockIdx.x * kPromptTokens, count = min(kPromptTokens, a.n - first);
    letNextKernelStart();
    waitForEarlierKernels();
    const int position = a.firstPosition + first; // the group lies in one block
    Bf16* block = a.blocks + std::size_t(g) * a.headStride + std::size_t(position / bs) * blockElements(bs, dim);
    for (int i = threadIdx.x; i < count * (group + 1) * half; i += kThreads) {
        const int t = i / ((group + 1) * half), h = i / half % (group + 1), c = i % half;
        const float* in = a.qkv + std::size_t(first + t) * width;
        const float cos = a.cos[std::size_t(position + t) * half + c],
                    sin = a.sin[std::size_t(position + t) * half + c];
        const bool key = h == group;
        const float* from = key ? in + qWidth + g * dim : in + (std::size_t(g) * group + h) * dim;
        const Pair pair(a.interleaved, c, half);
        const float x = from[pair.low], y = from[pair.high];
        Bf16* to = key ? block + (position % bs + t) * dim
                       : a.q + std::size_t(first + t) * qWidth + (std::size_t(g) * group + h) * dim;
        to[pair.low] = __float2bfloat16(x * cos - y * sin);
        to[pair.high] = __float2bfloat16(y * cos + x * sin);
    }
    for (int c = threadIdx.x; c < dim; c += kThreads) {
        float v[kPromptTokens];
#pragma unroll
        for (int t = 0; t < kPromptTokens; ++t)
            v[t] = t < count ? a.qkv[std::size_t(first + t) * width + qWidth + kvWidth + g * dim + c] : 0.f;
        *reinterpret_cast<uint4*>(block + std::size_t(bs) * dim + std::size_t(c) * bs + position % bs) =
            make_uint4(packBf16(v[0], v[1]), packBf16(v[2], v[3]), packBf16(v[4], v[5]), packBf16(v[6], v[7]));
    }
    const int warp = threadIdx.x / kWarp;
    if (a.eviction.gain != nullptr && warp < count) {
        static_assert(kWarps >= kPromptTokens);
        const float score =
            evictionScore(a.eviction, a.qkv + std::size_t(first + warp) * width + qWidth + kvWidth, g, kvWidth);
        const int head = a.sequence * a.shape.kvHeads + g;
        if (threadIdx.x % kWarp == 0) a.index.tokenScores[a.index.tokenFirst[head] + position + warp] = score;
    }
}

/// Grid (windows completed by these tokens, kvHeads), a thread per channel.
__global__ void windowKernel(PromptArgs a, int firstWindow) {
    const int g = blockIdx.y, c = threadIdx.x, dim = a.shape.dim, bs = a.shape.blockSize,
              window = firstWindow + blockIdx.x;
    const int head = a.sequence * a.shape.kvHeads + g, start = window * a.index.stride;
    letNextKernelStart();
    waitForEarlierKernels();
    const float share = 1.f / float(a.index.kernel);
    if (a.index.recentKeys != nullptr) {
        const Bf16* blocks = a.blocks + std::size_t(g) * a.headStride;
        float sum = 0;
        for (int t = start; t < start + a.index.kernel; ++t)
            sum += __bfloat162float(blocks[std::size_t(t / bs) * blockElements(a.shape) + t % bs * dim + c]);
        a.index.pooledKeys[std::size_t(a.index.windowFirst[head] + window) * dim + c] = __float2bfloat16(sum * share);
    }
    if (a.index.recentScores != nullptr && c == 0) {
        const float* scores = a.index.tokenScores + a.index.tokenFirst[head];
        float sum = 0;
        for (int t = start; t < start + a.index.kernel; ++t) sum += a.index.exponentiates ? expf(scores[t]) : scores[t];
        a.index.pooledScores[a.index.windowFirst[head] + window] = sum * share;
    }
}

/// Grid (blocks touched, kvHeads), a thread per channel.
__global__ void rangeKernel(PromptArgs a, int firstBlock) {
    const int g = blockIdx.y, c = threadIdx.x, dim = a.shape.dim, bs = a.shape.blockSize,
              block = firstBlock + blockIdx.x;
    const int head = a.sequence * a.shape.kvHeads + g, tokens = min(bs, a.firstPosition + a.n - block * bs);
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* keys = a.blocks + std::size_t(g) * a.headStride + std::size_t(block) * blockElements(a.shape) + c;
    float low = INFINITY, high = -INFINITY;
    for (int t = 0; t < tokens; ++t) {
        const float key = __bfloat162float(keys[t * dim]);
        low = fminf(low, key);
        high = fmaxf(high, key);
    }
    Bf16* range = a.index.ranges + std::size_t(a.index.blockFirst[head] + block) * 2 * dim;
    range[c] = __float2bfloat16(low);
    range[dim + c] = __float2bfloat16(high);
}

/// Grid (kernel tokens, kvHeads): the last tokens into the rings.
__global__ void ringKernel(PromptArgs a) {
    const int g = blockIdx.y, c = threadIdx.x, dim = a.shape.dim, bs = a.shape.blockSize;
    const int token = a.firstPosition + a.n - 1 - int(blockIdx.x), head = a.sequence * a.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (token < 0) return;
    const int slot = token % a.index.kernel;
    if (a.index.recentKeys != nullptr)
        a.index.recentKeys[(std::size_t(head) * a.index.kernel + slot) * dim + c] =
            a.blocks[std::size_t(g) * a.headStride + std::size_t(token / bs) * blockElements(a.shape) +
                     token % bs * dim + c];
    if (a.index.recentScores != nullptr && c == 0) {
        const float score = a.index.tokenScores[a.index.tokenFirst[head] + token];
        a.index.recentScores[std::size_t(head) * a.index.kernel + slot] = a.index.exponentiates ? expf(score) : score;
    }
}

__global__ void __launch_bounds__(kThreads)
    tailKernel(AttentionShape shape, const Bf16* blocks, std::int64_t headStride, int sequence, int tail, Bf16* pool,
               int slots, std::int32_t* map, std::int32_t* lastUse, Bf16* newest) {
    const int g = blockIdx.x, head = sequence * shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    const std::size_t size = blockElements(shape);
    const uint4* from = reinterpret_cast<const uint4*>(blocks + std::size_t(g) * headStride + tail * size);
    uint4* to = reinterpret_cast<uint4*>(newest != nullptr ? newest + std::size_t(head) * size
                                                           : pool + std::size_t(head) * slots * size);
    for (std::size_t i = threadIdx.x; i < size / 8; i += kThreads) to[i] = from[i];
    if (threadIdx.x == 0) {
        if (map != nullptr) map[std::size_t(head) * slots] = tail;
        if (lastUse != nullptr) lastUse[std::size_t(head) * slots] = 0;
    }
}

__device__ inline std::uint64_t mix(std::uint64_t x) { // splitmix64
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

__global__ void __launch_bounds__(kThreads)
    normalKernel(Bf16* to, std::size_t count, float deviation, std::uint64_t seed) {
    for (std::size_t i = (std::size_t(blockIdx.x) * kThreads + threadIdx.x) * 2; i < count;
         i += std::size_t(gridDim.x) * kThreads * 2) {
        const std::uint64_t bits = mix(mix(seed) + i);
        const float u = (float(bits >> 40) + 0.5f) * 0x1p-24f, v = float(bits & 0xffffff) * 0x1p-24f;
        const float radius = deviation * sqrtf(-2.f * logf(u));
        to[i] = __float2bfloat16(radius * cospif(2 * v));
        if (i + 1 < count) to[i + 1] = __float2bfloat16(radius * sinpif(2 * v));
    }
}

__global__ void __launch_bounds__(kThreads) scoreKernel(float* to, std::size_t count, std::uint64_t seed) {
    for (std::size_t i = std::size_t(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += std::size_t(gridDim.x) * kThreads) {
        const std::uint64_t bits = mix(mix(seed) + i);
        const float u = (float(bits >> 40) + 0.5f) * 0x1p-24f, v = float(bits & 0xffffff) * 0x1p-24f;
        to[i] = softplus(sqrtf(-2.f * logf(u)) * cospif(2 * v));
    }
}

} // namespace

void embedTokens(const Launch& how, const Bf16* table, int cols, const std::int32_t* ids, int rows, float* x,
                 float scale, std::uint32_t* clear, int clearCount, std::uint64_t* mark) {
    if (rows == 0) return;
    launch(how, {dim3(unsigned(rows)), dim3(kThreads)}, embedKernel, "embedding tokens", table, cols, ids, x, scale,
           clear, clearCount, mark);
}

void rotateAndAppend(const Launch& how, const AppendArgs& args) {
    if (args.rows == 0) return;
    launch(how,
           {dim3(unsigned(args.shape.kvHeads), unsigned(args.rows), 2), dim3(kThreads),
            std::size_t(args.shape.dim) * sizeof(float)},
           args.norms.query != nullptr ? appendKernel<true> : appendKernel<false>, "rotating and appending", args);
}

void rotatePrompt(const Launch& how, const PromptArgs& args) {
    if (args.n == 0) return;
    if (args.firstPosition % kPromptTokens != 0)
        throw Error(ErrorKind::BadInput, "a piece of a prompt must begin at a multiple of 8 tokens",
                    "this is a bug in KVScope");
    if (args.norms.query != nullptr)
        launch(how, {dim3(unsigned(args.n)), dim3(kThreads)}, headNormKernel, "normalising the prompt's heads", args);
    launch(how,
           {dim3(unsigned((args.n + kPromptTokens - 1) / kPromptTokens), unsigned(args.shape.kvHeads)), dim3(kThreads)},
           promptKernel, "rotating the prompt", args);
}

void indexPrompt(const Launch& how, const PromptArgs& args) {
    const DeviceIndex& index = args.index;
    const auto windows = [&](int tokens) {
        return tokens < index.kernel ? 0 : (tokens - index.kernel) / index.stride + 1;
    };
    const unsigned heads = unsigned(args.shape.kvHeads), channels = unsigned(args.shape.dim);
    if (index.recentKeys != nullptr || index.recentScores != nullptr) {
        const int first = windows(args.firstPosition), end = windows(args.firstPosition + args.n);
        if (end > first)
            launch(how, {dim3(unsigned(end - first), heads), dim3(channels)}, windowKernel, "pooling the prompt", args,
                   first);
        launch(how, {dim3(unsigned(index.kernel), heads), dim3(channels)}, ringKernel, "keeping recent keys", args);
    }
    if (index.ranges != nullptr) {
        const int first = args.firstPosition / args.shape.blockSize;
        const int end = (args.firstPosition + args.n + args.shape.blockSize - 1) / args.shape.blockSize;
        launch(how, {dim3(unsigned(end - first), heads), dim3(channels)}, rangeKernel, "bounding the prompt", args,
               first);
    }
}

void placeTail(const Launch& how, const AttentionShape& shape, const Bf16* blocks, std::int64_t headStride,
               int sequence, int tokens, Bf16* pool, int slots, std::int32_t* map, std::int32_t* lastUse,
               Bf16* newest) {
    if (tokens % shape.blockSize == 0) return;
    launch(how, {dim3(unsigned(shape.kvHeads)), dim3(kThreads)}, tailKernel, "placing the tail", shape, blocks,
           headStride, sequence, tokens / shape.blockSize, pool, slots, map, lastUse, newest);
}

void fillNormal(Bf16* to, std::size_t count, float deviation, std::uint64_t seed) {
    if (count == 0) return;
    normalKernel<<<unsigned(std::min<std::size_t>((count / 2 + kThreads) / kThreads, 4096)), kThreads>>>(
        to, count, deviation, seed);
    check(cudaGetLastError(), "making random numbers");
    check(cudaDeviceSynchronize(), "making random numbers");
}

void fillScores(float* to, std::size_t count, std::uint64_t seed) {
    if (count == 0) return;
    scoreKernel<<<unsigned(std::min<std::size_t>((count + kThreads - 1) / kThreads, 4096)), kThreads>>>(to, count,
                                                                                                        seed);
    check(cudaGetLastError(), "making random numbers");
    check(cudaDeviceSynchronize(), "making random numbers");
}

} // namespace kvscope::cuda
