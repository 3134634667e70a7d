#include "kernels/cuda/methods/far_blocks.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/device/lane_dot.cuh"
#include "kernels/cuda/device/ranking.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/token/rotation.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostBlock = 256; // see checkAttentionShape

/// The oldest block of the local window of a query at `position`. Older blocks are attended at a fixed distance.
__host__ __device__ inline int firstLocal(int position, int localTokens, int blockSize) {
    const int before = position + 1 - localTokens;
    return before > 0 ? before / blockSize : 0;
}

// ---- The prompt -----------------------------------------------------------------------------------------------------

/// Grid (tokens, kvHeads), a thread per channel.
__global__ void keepKernel(FarPromptArgs a) {
    const AttentionShape& s = a.memory.shape;
    const int i = blockIdx.x, g = blockIdx.y, c = threadIdx.x;
    letNextKernelStart();
    waitForEarlierKernels();
    const float* in = a.qkv + std::size_t(i) * (s.queryHeads + 2 * s.kvHeads) * s.dim + (s.queryHeads + g) * s.dim;
    a.plainKeys[(std::size_t(g) * a.promptTokens + a.first + i) * s.dim + c] = __float2bfloat16(in[c]);
}

/// Loads 16 bf16 rows as tensor-core fragments, with their columns permuted as in attention_parts.cuh.
template <int kDim>
__device__ inline void loadRows(const Bf16* low, const Bf16* high, std::uint32_t (&f)[kDim / 32][2][4]) {
    const int quad = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        const uint4 x = *reinterpret_cast<const uint4*>(low + c * 32 + quad * 8),
                    y = *reinterpret_cast<const uint4*>(high + c * 32 + quad * 8);
        f[c][0][0] = x.x, f[c][0][1] = y.x, f[c][0][2] = x.y, f[c][0][3] = y.y;
        f[c][1][0] = x.z, f[c][1][1] = y.z, f[c][1][2] = x.w, f[c][1][3] = y.w;
    }
}

/// Multiplies 16 loaded rows with 8 columns. column [kDim] is the column whose fragments this lane holds.
template <int kDim>
__device__ inline void multiply(const std::uint32_t (&f)[kDim / 32][2][4], const Bf16* column, float (&out)[4]) {
    const int quad = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        const uint4 k = *reinterpret_cast<const uint4*>(column + c * 32 + quad * 8);
        mma16816(out, f[c][0][0], f[c][0][1], f[c][0][2], f[c][0][3], k.x, k.y);
        mma16816(out, f[c][1][0], f[c][1][1], f[c][1][2], f[c][1][3], k.z, k.w);
    }
}

/// The log-sum-exp of every query over its local window. Grid (64 queries, queryHeads), a warp takes 16 queries.
template <int kDim> __global__ void __launch_bounds__(128) windowSumKernel(FarPromptArgs a) {
    const AttentionShape& s = a.memory.shape;
    const int h = blockIdx.y, g = h / (s.queryHeads / s.kvHeads), lane = threadIdx.x % kWarp, row = lane / 4,
              quad = lane % 4, bs = s.blockSize;
    const int base = (int(blockIdx.x) * 4 + int(threadIdx.x) / kWarp) * 16; // this warp's first query of the piece
    letNextKernelStart();
    waitForEarlierKernels();
    if (base >= a.n) return;
    const auto queryAt = [&](int i) { return a.q + (std::size_t(min(i, a.n - 1)) * s.queryHeads + h) * kDim; };
    std::uint32_t f[kDim / 32][2][4];
    loadRows<kDim>(queryAt(base + row), queryAt(base + row + 8), f);
    const int last = a.first + min(base + 15, a.n - 1),
              firstKey = firstLocal(a.first + base, a.memory.localTokens, bs) * bs;
    const Bf16* blocks = a.blocks + std::size_t(g) * a.headStride;
    const float* bias = a.tokenBias != nullptr && a.biasScale != 0.f ? a.tokenBias + g * a.biasStride : nullptr;
    int position[2], begin[2];
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        position[e] = a.first + base + row + 8 * e;
        begin[e] = firstLocal(position[e], a.memory.localTokens, bs) * bs;
    }
    for (int tile = firstKey; tile <= last; tile += 8) { // blocks are multiples of 16 tokens
        float logits[4] = {};
        multiply<kDim>(f,
                       blocks + std::size_t(tile / bs) * blockElements(bs, kDim) +
                           std::size_t(min(tile + row, last) % bs) * kDim,
                       logits);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = tile + quad * 2 + e % 2, at = e / 2;
            if (key < begin[at] || key > position[at]) continue;
            const float logit = logits[e] * a.scale + (bias != nullptr ? a.biasScale * bias[key] : 0.f);
            const float next = fmaxf(maximum[at], logit);
            sum[at] = sum[at] * exp2f((maximum[at] - next) * kLog2e) + exp2f((logit - next) * kLog2e);
            maximum[at] = next;
        }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
            const float theirs = __shfl_xor_sync(0xffffffffu, maximum[e], offset),
                        other = __shfl_xor_sync(0xffffffffu, sum[e], offset);
            const float both = fmaxf(maximum[e], theirs), reference = both == -INFINITY ? 0.f : both;
            sum[e] = sum[e] * exp2f((maximum[e] - reference) * kLog2e) + other * exp2f((theirs - reference) * kLog2e);
            maximum[e] = both;
        }
        if (quad == 0 && base + row + 8 * e < a.n)
            a.logSums[std::size_t(h) * a.n + base + row + 8 * e] = maximum[e] + logf(sum[e]);
    }
}

/// Adds up the attention that the piece's queries give to each token. A warp takes 16 tokens and a query head.
/// Grid (64 tokens, queryHeads).
template <int kDim> __global__ void __launch_bounds__(128) windowMassKernel(FarPromptArgs a, int firstKey) {
    const AttentionShape& s = a.memory.shape;
    const int h = blockIdx.y, g = h / (s.queryHeads / s.kvHeads), lane = threadIdx.x % kWarp, row = lane / 4,
              quad = lane % 4, bs = s.blockSize;
    const int base = firstKey + (int(blockIdx.x) * 4 + int(threadIdx.x) / kWarp) * 16, end = a.first + a.n;
    letNextKernelStart();
    waitForEarlierKernels();
    if (base >= end) return;
    const Bf16* block = a.blocks + std::size_t(g) * a.headStride + std::size_t(base / bs) * blockElements(bs, kDim);
    std::uint32_t f[kDim / 32][2][4]; // rows past the end are finite: the block's memory holds bf16 numbers
    loadRows<kDim>(block + std::size_t(base % bs + row) * kDim, block + std::size_t(base % bs + row + 8) * kDim, f);
    const float* bias = a.tokenBias != nullptr && a.biasScale != 0.f ? a.tokenBias + g * a.biasStride : nullptr;
    float add[2] = {0, 0}, sum[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < 2; ++e)
        if (bias != nullptr && base + row + 8 * e < end) add[e] = a.biasScale * bias[base + row + 8 * e];
    // The 16 tokens lie in one block, so that all of them leave the window of a query at once.
    const int firstQuery = max(base, a.first);
    const int endQuery = min(end, (base / bs + 1) * bs + a.memory.localTokens - 1);
    const float* logSums = a.logSums + std::size_t(h) * a.n - a.first;
    for (int tile = firstQuery; tile < endQuery; tile += 8) {
        float logits[4] = {};
        multiply<kDim>(f, a.q + (std::size_t(min(tile + row, end - 1) - a.first) * s.queryHeads + h) * kDim, logits);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int query = tile + quad * 2 + e % 2, key = base + row + e / 2 * 8;
            if (query >= endQuery || key > query) continue;
            sum[e / 2] += exp2f((logits[e] * a.scale + add[e / 2] - logSums[query]) * kLog2e);
        }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);
        sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);
        const int key = base + row + 8 * e;
        if (quad == 0 && key < end) a.mass[std::size_t(h) * a.promptTokens + key] += sum[e];
    }
}

/// One channel of the mean key of a block's `count` flagged tokens. chosen: [blockSize] flags of one query head.
__device__ inline float meanOf(const std::uint8_t* chosen, int size, int count, const Bf16* keys, int stride) {
    float sum = 0;
    for (int t = 0; t < size; ++t)
        if (chosen[t] != 0) sum += __bfloat162float(keys[std::size_t(t) * stride]);
    return sum / float(count);
}

/// For every query head of the group, flags the tokens of the block that have the most mass; of equal ones the lower
/// tokens. All threads of the thread block call this.
__device__ inline void flagBest(std::uint8_t (*chosen)[kMostBlock], const float* mass, std::size_t headStride,
                                int group, int size, int count) {
    for (int i = threadIdx.x; i < group * size; i += kThreads) {
        const int h = i / size, t = i % size;
        const float* of = mass + h * headStride;
        const float mine = of[t];
        int better = 0;
        for (int other = 0; other < size; ++other)
            better += of[other] > mine || (of[other] == mine && other < t) ? 1 : 0;
        chosen[h][t] = better < count ? 1 : 0;
    }
}

/// Grid (blocks of the prompt, kvHeads).
__global__ void __launch_bounds__(kThreads) settleKernel(FarSettleArgs a) {
    __shared__ std::uint8_t chosen[kMostGroup][kMostBlock];
    const FarMemory& m = a.memory;
    const AttentionShape& s = m.shape;
    const int block = blockIdx.x, g = blockIdx.y, dim = s.dim, bs = s.blockSize, group = s.queryHeads / s.kvHeads;
    const int head = a.sequence * s.kvHeads + g, first = block * bs, count = min(bs, a.tokens - first);
    letNextKernelStart();
    waitForEarlierKernels();
    Bf16* stored = a.blocks + std::size_t(g) * a.headStride + std::size_t(block) * blockElements(bs, dim);
    const Bf16* plain = a.plainKeys != nullptr ? a.plainKeys + (std::size_t(g) * a.tokens + first) * dim : stored;
    const float* mass = a.mass + std::size_t(g) * group * a.tokens + first;
    if (block < firstLocal(a.tokens - 1, m.localTokens, bs)) { // beyond the window, and full
        const int best = min(m.representatives, bs);
        flagBest(chosen, mass, std::size_t(a.tokens), group, bs, best);
        __syncthreads();
        Bf16* keys = m.blockKeys + std::size_t(m.blockFirst[head] + block) * group * dim;
        for (int i = threadIdx.x; i < group * dim; i += kThreads)
            keys[i] = __float2bfloat16(meanOf(chosen[i / dim], bs, best, plain + i % dim, dim));
        if (plain == stored) return;
        const uint4* from = reinterpret_cast<const uint4*>(plain);
        uint4* to = reinterpret_cast<uint4*>(stored);
        for (int i = threadIdx.x; i < bs * dim / 8; i += kThreads) to[i] = from[i];
        return;
    }
    Bf16* ring = m.plainKeys + (std::size_t(head) * m.ringTokens + first % m.ringTokens) * dim;
    for (int i = threadIdx.x; i < count * dim; i += kThreads) ring[i] = plain[i];
    for (int i = threadIdx.x; i < group * count; i += kThreads) {
        const int h = i / count, t = i % count;
        m.mass[(std::size_t(a.sequence) * s.queryHeads + g * group + h) * m.ringTokens + first % m.ringTokens + t] =
            mass[std::size_t(h) * a.tokens + t];
    }
}

// ---- A step ---------------------------------------------------------------------------------------------------------

/// Grid (kvHeads, rows).
__global__ void __launch_bounds__(kThreads) appendKernel(FarAppendArgs a) {
    __shared__ std::uint8_t chosen[kMostGroup][kMostBlock];
    __shared__ float inverse[kMostGroup + 1]; // inverse norms of the queries, then of the key
    __shared__ int slot;
    const FarMemory& m = a.memory;
    const AttentionShape& s = m.shape;
    const int g = blockIdx.x, row = blockIdx.y, dim = s.dim, half = dim / 2, bs = s.blockSize;
    const int group = s.queryHeads / s.kvHeads, head = row * s.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.replaced != nullptr && g == 0 && row == 0 && threadIdx.x == 0) {
        std::uint32_t count = 0;
        for (int r = 0; r < a.rows; ++r) {
            const int p = a.position[r];
            if (a.active[r] != 0 && p > 0 && firstLocal(p, m.localTokens, bs) > firstLocal(p - 1, m.localTokens, bs))
                count += unsigned(s.kvHeads);
        }
        *a.replaced = count;
    }
    if (a.active[row] == 0) return;
    const int position = a.position[row], at = position % m.ringTokens;
    const float* in = a.qkv + std::size_t(row) * (s.queryHeads + 2 * s.kvHeads) * dim;
    const bool normed = a.norms.query != nullptr;
    for (int h = threadIdx.x / kWarp; normed && h <= group; h += kWarps) {
        const float* x = in + std::size_t(h < group ? g * group + h : s.queryHeads + g) * dim;
        const float value = inverseNorm(x, dim, a.norms.eps);
        if (threadIdx.x % kWarp == 0) inverse[h] = value;
    }
    if (threadIdx.x == 0) slot = -1;
    __syncthreads();
    // Far keys have not been rotated, as at position 0, and the query is rotated as at the distance. A sequence that is
    // too short for a table row at this distance has no far blocks.
    const int distance = min(m.localTokens, a.maxTokens[row] - 1);
    const std::size_t angles = std::size_t(a.ropeFirst[row] + distance) * half;
    Bf16* q = a.farQ + (std::size_t(row) * s.queryHeads + std::size_t(g) * group) * dim;
    for (int i = threadIdx.x; i < group * half; i += kThreads) {
        const int h = i / half, c = i % half;
        const float* from = in + (std::size_t(g) * group + h) * dim;
        const Pair pair(a.interleaved, c, half);
        float x = from[pair.low], y = from[pair.high];
        if (normed) x *= inverse[h] * a.norms.query[pair.low], y *= inverse[h] * a.norms.query[pair.high];
        const float u = a.cos[angles + c], v = a.sin[angles + c];
        q[h * dim + pair.low] = __float2bfloat16(x * u - y * v);
        q[h * dim + pair.high] = __float2bfloat16(y * u + x * v);
    }
    Bf16* ring = m.plainKeys + std::size_t(head) * m.ringTokens * dim;
    const float* key = in + std::size_t(s.queryHeads + g) * dim;
    for (int c = threadIdx.x; c < dim; c += kThreads)
        ring[std::size_t(at) * dim + c] = __float2bfloat16(normed ? key[c] * inverse[group] * a.norms.key[c] : key[c]);
    float* mass = m.mass + (std::size_t(row) * s.queryHeads + std::size_t(g) * group) * m.ringTokens;
    for (int h = threadIdx.x; h < group; h += kThreads) mass[std::size_t(h) * m.ringTokens + at] = 0;

    const int local = firstLocal(position, m.localTokens, bs);
    if (position == 0 || local == firstLocal(position - 1, m.localTokens, bs)) return;
    // A block leaves the window.
    const int block = local - 1, first = block * bs % m.ringTokens, best = min(m.representatives, bs);
    flagBest(chosen, mass + first, std::size_t(m.ringTokens), group, bs, best);
    for (int i = threadIdx.x; i < a.slots; i += kThreads)
        if (a.map[std::size_t(head) * a.slots + i] == block) slot = i;
    __syncthreads();
    const Bf16* plain = ring + std::size_t(first) * dim;
    Bf16* keys = m.blockKeys + std::size_t(m.blockFirst[head] + block) * group * dim;
    for (int i = threadIdx.x; i < group * dim; i += kThreads)
        keys[i] = __float2bfloat16(meanOf(chosen[i / dim], bs, best, plain + i % dim, dim));
    const std::size_t elements = blockElements(bs, dim), stored = std::size_t(m.blockFirst[head] + block) * elements;
    const uint4* from = reinterpret_cast<const uint4*>(plain);
    uint4* to = nullptr; // where the device tier has the block; null: it has no slot
    if (a.slots == 0)
        to = reinterpret_cast<uint4*>(a.blocks + stored);
    else if (slot >= 0)
        to = reinterpret_cast<uint4*>(a.blocks + (std::size_t(head) * a.slots + slot) * elements);
    uint4* host = a.storeOut != nullptr ? reinterpret_cast<uint4*>(a.storeOut + stored) : nullptr;
    for (int i = threadIdx.x; i < bs * dim / 8; i += kThreads) {
        if (to != nullptr) to[i] = from[i];
        if (host != nullptr) host[i] = from[i];
    }
}

constexpr int kBlocksPerWarp = 4;

/// Grid (block tiles, block sets, rows). Shared memory: the set's queries as floats, [shared*group*dim].
__global__ void __launch_bounds__(kThreads) scoreKernel(FarChoiceArgs a) {
    extern __shared__ float4 queries[];
    const FarMemory& m = a.memory;
    const AttentionShape& s = m.shape;
    const int set = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int group = s.queryHeads / s.kvHeads, width = group * s.dim; // query heads and floats of a KV head
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && set == 0 && row == 0 && threadIdx.x == 0) stamp(a.scoreMark);
    if (a.active[row] == 0) return;
    const int local = firstLocal(a.position[row], m.localTokens, s.blockSize);
    if (a.initBlocks + int(blockIdx.x) * kWarps * kBlocksPerWarp >= local) return;
    const Bf16* q = a.farQ + (std::size_t(row) * s.queryHeads + std::size_t(set) * a.shared * group) * s.dim;
    float* wide = reinterpret_cast<float*>(queries);
    for (int i = threadIdx.x; i < a.shared * width; i += kThreads) wide[i] = __bfloat162float(q[i]);
    __syncthreads();
    const int first = a.initBlocks + (int(blockIdx.x) * kWarps + warp) * kBlocksPerWarp;
    float sum[kBlocksPerWarp] = {};
    if (first < local)
        for (int g = 0; g < a.shared; ++g) {
            const int head = row * s.kvHeads + set * a.shared + g;
            const Bf16* keys = m.blockKeys + std::size_t(m.blockFirst[head]) * width;
            for (int piece = lane; piece < width / 8; piece += kWarp) {
                uint4 key[kBlocksPerWarp];
#pragma unroll
                for (int b = 0; b < kBlocksPerWarp; ++b)
                    key[b] = loadOnce(keys + std::size_t(min(first + b, local - 1)) * width + piece * 8);
                const float4 x = queries[(g * width + piece * 8) / 4], y = queries[(g * width + piece * 8) / 4 + 1];
#pragma unroll
                for (int b = 0; b < kBlocksPerWarp; ++b)
                    sum[b] += x.x * lowHalf(key[b].x) + x.y * highHalf(key[b].x) + x.z * lowHalf(key[b].y) +
                              x.w * highHalf(key[b].y) + y.x * lowHalf(key[b].z) + y.y * highHalf(key[b].z) +
                              y.z * lowHalf(key[b].w) + y.w * highHalf(key[b].w);
            }
        }
    float* scores = a.scores + (std::size_t(row) * gridDim.y + set) * a.maxBlocks;
#pragma unroll
    for (int b = 0; b < kBlocksPerWarp; ++b) {
        const float score = warpSum(sum[b]);
        if (lane == 0 && first + b < local) scores[first + b] = score;
    }
}

constexpr int kChoiceWarps = 16;

/// Grid (block sets, rows). Shared memory: ordered keys [maxBlocks], flags [maxBlocks].
__global__ void __launch_bounds__(kChoiceWarps* kWarp) choiceKernel(FarChoiceArgs a) {
    extern __shared__ std::uint32_t keys[];
    __shared__ BlockCounter<kChoiceWarps>::Shared counts;
    constexpr int kAll = kChoiceWarps * kWarp;
    std::uint8_t* origins = reinterpret_cast<std::uint8_t*>(keys + a.maxBlocks);
    const FarMemory& m = a.memory;
    const int set = blockIdx.x, row = blockIdx.y, bs = m.shape.blockSize;
    letNextKernelStart();
    waitForEarlierKernels();
    if (set == 0 && row == 0 && threadIdx.x == 0) stamp(a.chooseMark);
    if (a.active[row] == 0) return;
    const int position = a.position[row], local = firstLocal(position, m.localTokens, bs), blocks = position / bs + 1;
    const int init = min(a.initBlocks, local);
    const float* scores = a.scores + (std::size_t(row) * gridDim.x + set) * a.maxBlocks;
    constexpr std::uint8_t kAbsent = 0xff;
    BlockCounter<kChoiceWarps> counter(counts);
    for (int b = threadIdx.x; b < blocks; b += kAll) {
        origins[b] = b < init ? std::uint8_t(Origin::Sink) : b >= local ? std::uint8_t(Origin::Window) : kAbsent;
        keys[b] = b >= init && b < local ? rankingKey(scores[b]) : 0;
    }
    __syncthreads();
    takeLargest(keys, local, a.topk, counter, [&](int b) { origins[b] = std::uint8_t(Origin::QueryAware); });
    __syncthreads();
    const int perThread = (blocks + kAll - 1) / kAll, begin = min(int(threadIdx.x) * perThread, blocks),
              end = min(begin + perThread, blocks);
    int mine = 0, count = 0, far = 0;
    for (int b = begin; b < end; ++b) mine += origins[b] != kAbsent ? 1 : 0;
    for (int b = begin; b < min(end, local); ++b) far += origins[b] != kAbsent ? 1 : 0;
    int at = counter.prefix(mine, count);
    far = counter.sum(far);
    const std::size_t firstItem = std::size_t(row) * m.shape.kvHeads + std::size_t(set) * a.shared;
    for (int b = begin; b < end; ++b) {
        if (origins[b] == kAbsent || at >= a.capacity) continue;
        const float score = origins[b] == std::uint8_t(Origin::QueryAware) ? scores[b] : __uint_as_float(0x7fc00000u);
        for (int g = 0; g < a.shared; ++g) {
            const std::size_t to = (firstItem + g) * a.capacity + at;
            a.chosen[to] = PackedBlock(b, Origin(origins[b]), false);
            a.chosenScores[to] = score;
        }
        ++at;
    }
    if (int(threadIdx.x) < a.shared) {
        a.chosenCount[firstItem + threadIdx.x] = min(count, a.capacity);
        a.farCount[firstItem + threadIdx.x] = far;
    }
}

/// Grid (blocks of a window, kvHeads, rows). A thread block adds up the attention that the tokens of one KV block of
/// the window have received; a warp takes a few tokens and all queries of the group. The first thread block of a head
/// also merges the two parts of the attention.
template <int kDim> __global__ void __launch_bounds__(kThreads) mergeKernel(FarMergeArgs a) {
    constexpr int kLanes = kDim / 8;          // lanes that hold a key together, 16 bytes each
    constexpr int kTogether = kWarp / kLanes; // tokens that a warp takes at once
    const FarMemory& m = a.memory;
    const AttentionShape& s = m.shape;
    const int g = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int group = s.queryHeads / s.kvHeads, bs = s.blockSize, item = row * s.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active[row] == 0) return;
    const int far = a.farCount[item], entry = far + int(blockIdx.x);
    const std::size_t firstQuery = std::size_t(row) * s.queryHeads + std::size_t(g) * group;
    if (blockIdx.x == 0 && far > 0)
        for (int i = threadIdx.x; i < group * kDim / 2; i += kThreads) {
            const std::size_t h = firstQuery + i / (kDim / 2), at = h * kDim + i % (kDim / 2) * 2;
            const float near = a.nearLogSums[h], beyond = a.farLogSums[h], most = fmaxf(near, beyond);
            const float x = exp2f((near - most) * kLog2e), y = exp2f((beyond - most) * kLog2e), all = 1.f / (x + y);
            const std::uint32_t mine = *reinterpret_cast<const std::uint32_t*>(a.out + at),
                                theirs = *reinterpret_cast<const std::uint32_t*>(a.farOut + at);
            *reinterpret_cast<std::uint32_t*>(a.out + at) = packBf16((x * lowHalf(mine) + y * lowHalf(theirs)) * all,
                                                                     (x * highHalf(mine) + y * highHalf(theirs)) * all);
        }
    if (entry >= a.listCount[item]) return;
    const int position = a.position[row], block = a.listBlock[std::size_t(item) * a.capacity + entry];
    const int place = a.listSlot != nullptr ? a.listSlot[std::size_t(item) * a.capacity + entry] : block;
    const Bf16* keys = a.blocks + std::size_t(a.headFirst[item] + place) * blockElements(bs, kDim);
    const float* bias = a.tokenBias != nullptr && a.biasScale != 0.f
                            ? a.tokenBias + a.biasFirst[item] + std::int64_t(block) * bs
                            : nullptr;
    const int count = min(bs, position + 1 - block * bs), part = lane % kLanes;
    float* mass = m.mass + firstQuery * m.ringTokens + block * bs % m.ringTokens;
    for (int base = warp * kTogether; base < count; base += kWarps * kTogether) {
        const int t = base + lane / kLanes;
        const uint4 k = *reinterpret_cast<const uint4*>(keys + std::size_t(min(t, count - 1)) * kDim + part * 8);
        for (int h = 0; h < group; ++h) {
            const float dot = dotOverLanes<kLanes>(k, a.q + (firstQuery + h) * kDim + part * 8);
            if (part == 0 && t < count)
                mass[std::size_t(h) * m.ringTokens + t] += exp2f(
                    (dot * a.scale + (bias != nullptr ? a.biasScale * bias[t] : 0.f) - a.nearLogSums[firstQuery + h]) *
                    kLog2e);
        }
    }
}

} // namespace

void readFarPrompt(const Launch& how, const FarPromptArgs& args) {
    if (args.n == 0) return;
    const AttentionShape& shape = args.memory.shape;
    const unsigned heads = unsigned(shape.queryHeads);
    launch(how, {dim3(unsigned(args.n), unsigned(shape.kvHeads)), dim3(unsigned(shape.dim))}, keepKernel,
           "keeping plain keys", args);
    const Grid sums{dim3(unsigned((args.n + 63) / 64), heads), dim3(128)};
    launch(how, sums, shape.dim == 64 ? windowSumKernel<64> : windowSumKernel<128>, "summing local windows", args);
    const int firstKey = firstLocal(args.first, args.memory.localTokens, shape.blockSize) * shape.blockSize;
    const Grid masses{dim3(unsigned((args.first + args.n - firstKey + 63) / 64), heads), dim3(128)};
    launch(how, masses, shape.dim == 64 ? windowMassKernel<64> : windowMassKernel<128>, "adding up attention", args,
           firstKey);
}

void settleFarPrompt(const Launch& how, const FarSettleArgs& args) {
    if (args.tokens == 0) return;
    const AttentionShape& shape = args.memory.shape;
    launch(how,
           {dim3(unsigned((args.tokens + shape.blockSize - 1) / shape.blockSize), unsigned(shape.kvHeads)),
            dim3(kThreads)},
           settleKernel, "settling the prompt's blocks", args);
}

void appendToFarMemory(const Launch& how, const FarAppendArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.memory.shape.kvHeads), unsigned(args.rows)), dim3(kThreads)}, appendKernel,
           "keeping a token's plain key", args);
}

void chooseFarBlocks(const Launch& how, const FarChoiceArgs& args) {
    if (args.rows == 0) return;
    const AttentionShape& shape = args.memory.shape;
    constexpr int kTile = kWarps * kBlocksPerWarp;
    const unsigned sets = unsigned(shape.kvHeads / args.shared), rows = unsigned(args.rows);
    const std::size_t lists = std::size_t(args.maxBlocks) * (sizeof(std::uint32_t) + 1);
    if (lists > sharedRoom(how, choiceKernel)) refuseContext(args.maxBlocks, shape.blockSize);
    const std::size_t queries =
        std::size_t(args.shared) * std::size_t(shape.group()) * std::size_t(shape.dim) * sizeof(float);
    allowShared(scoreKernel, queries, "preparing the blocks' scores");
    launch(how, {dim3(unsigned((args.maxBlocks + kTile - 1) / kTile), sets, rows), dim3(kThreads), queries},
           scoreKernel, "scoring blocks", args);
    allowShared(choiceKernel, lists, "preparing the choice of blocks");
    launch(how, {dim3(sets, rows), dim3(kChoiceWarps * kWarp), lists}, choiceKernel, "choosing blocks", args);
}

void mergeFarAttention(const Launch& how, const FarMergeArgs& args) {
    if (args.rows == 0) return;
    const AttentionShape& shape = args.memory.shape;
    launch(how, {dim3(unsigned(args.localBlocks), unsigned(shape.kvHeads), unsigned(args.rows)), dim3(kThreads)},
           shape.dim == 64 ? mergeKernel<64> : mergeKernel<128>, "joining both parts of the attention", args);
}

} // namespace kvscope::cuda
