#include "kernels/cuda/methods/shadow.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/device/ranking.cuh"
#include "kernels/cuda/device/shared_room.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Copies a step's new key, value and eviction score into the pool. Grid (kvHeads, rows), a thread per channel.
__global__ void appendKernel(ShadowAppendArgs a) {
    const ShadowMemory& m = a.memory;
    const int g = blockIdx.x, row = blockIdx.y, c = threadIdx.x, dim = m.shape.dim, bs = m.shape.blockSize;
    const int head = row * m.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active[row] == 0) return;
    const int position = a.position[row], at = m.counts[row].fixedTokens + position - m.counts[row].firstLocalToken;
    const std::size_t block = std::size_t(m.poolFirst[head]) + at / bs;
    Bf16* to = m.pool + block * blockElements(bs, dim);
    to[at % bs * dim + c] = a.newKey[std::size_t(head) * dim + c];
    to[std::size_t(bs) * dim + std::size_t(c) * bs + at % bs] = a.newValue[std::size_t(head) * dim + c];
    if (c == 0 && m.poolScores != nullptr)
        m.poolScores[block * bs + at % bs] = m.tokenScores[m.scoreFirst[head] + position];
}

constexpr int kTileChunks = 256; // chunks that a thread block scores, 32 by each warp

/// Writes the logits of the group's queries for a tile of landmarks, and each query head's maximum and sum of
/// exponentials over the tile, all in units of log2. Grid (tiles, kvHeads, rows).
template <int kDim> __global__ void __launch_bounds__(kThreads) scoreKernel(ShadowChoiceArgs a) {
    __shared__ float maxima[kWarps][32], sums[kWarps][32];
    const ShadowMemory& m = a.memory;
    const int g = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int inTile = lane / 4, quad = lane % 4, group = m.shape.queryHeads / m.shape.kvHeads;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && g == 0 && row == 0 && threadIdx.x == 0) stamp(a.scoreMark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int sequence = a.firstSequence + row, head = sequence * m.shape.kvHeads + g,
              chunks = m.counts[sequence].chunks;
    if (int(blockIdx.x) * kTileChunks >= chunks) return;
    const Bf16* q = a.q + (std::size_t(row) * m.shape.queryHeads + std::size_t(g) * group) * kDim;
    const std::size_t firstChunk = std::size_t(m.chunkFirst[head]);
    const Bf16* landmarks = m.landmarks + firstChunk * kDim;
    const std::uint8_t* isOutlier = m.isOutlier + firstChunk;
    float* logitsOut = a.logits + (std::size_t(row) * m.shape.queryHeads + std::size_t(g) * group) * a.maxChunks;
    for (int headBase = 0; headBase < group; headBase += 16) {
        std::uint32_t f[kDim / 32][2][4];
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            uint4 low = make_uint4(0, 0, 0, 0), high = low;
            if (headBase + inTile < group)
                low = *reinterpret_cast<const uint4*>(q + (headBase + inTile) * kDim + c * 32 + quad * 8);
            if (headBase + inTile + 8 < group)
                high = *reinterpret_cast<const uint4*>(q + (headBase + inTile + 8) * kDim + c * 32 + quad * 8);
            f[c][0][0] = low.x, f[c][0][1] = high.x, f[c][0][2] = low.y, f[c][0][3] = high.y;
            f[c][1][0] = low.z, f[c][1][1] = high.z, f[c][1][2] = low.w, f[c][1][3] = high.w;
        }
        float logits[4][4] = {};
        const int first = int(blockIdx.x) * kTileChunks + warp * 32;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            const int chunk = min(first + t * 8 + inTile, chunks - 1);
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) {
                const uint4 k = loadOnce(landmarks + std::size_t(chunk) * kDim + c * 32 + quad * 8);
                mma16816(logits[t], f[c][0][0], f[c][0][1], f[c][0][2], f[c][0][3], k.x, k.y);
                mma16816(logits[t], f[c][1][0], f[c][1][1], f[c][1][2], f[c][1][3], k.z, k.w);
            }
        }
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
        for (int t = 0; t < 4; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int chunk = first + t * 8 + quad * 2 + e % 2, h = headBase + inTile + e / 2 * 8;
                const bool inside = chunk < chunks && isOutlier[min(chunk, chunks - 1)] == 0;
                const float logit = inside ? logits[t][e] * a.scale * kLog2e : -INFINITY;
                logits[t][e] = logit;
                if (chunk < chunks && h < group) logitsOut[std::size_t(h) * a.maxChunks + chunk] = logit;
                maximum[e / 2] = fmaxf(maximum[e / 2], logit);
            }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            maximum[e] = fmaxf(maximum[e], __shfl_xor_sync(0xffffffffu, maximum[e], 1));
            maximum[e] = fmaxf(maximum[e], __shfl_xor_sync(0xffffffffu, maximum[e], 2));
            const float reference = maximum[e] == -INFINITY ? 0.f : maximum[e];
#pragma unroll
            for (int t = 0; t < 4; ++t)
                sum[e] += exp2f(logits[t][2 * e] - reference) + exp2f(logits[t][2 * e + 1] - reference);
            sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);
            sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);
            if (quad == 0)
                maxima[warp][headBase + inTile + 8 * e] = maximum[e], sums[warp][headBase + inTile + 8 * e] = sum[e];
        }
    }
    __syncthreads();
    if (int(threadIdx.x) >= group) return;
    float maximum = -INFINITY, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, maxima[w][threadIdx.x]);
    const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][threadIdx.x] * exp2f(maxima[w][threadIdx.x] - reference);
    const int tiles = (a.maxChunks + kTileChunks - 1) / kTileChunks;
    float* partial =
        a.partial +
        ((std::size_t(row) * m.shape.queryHeads + std::size_t(g) * group + threadIdx.x) * tiles + blockIdx.x) * 2;
    partial[0] = maximum;
    partial[1] = sum;
}

constexpr int kChoiceWarps = 32;
constexpr std::uint8_t kChosen = 1, kThere = 2;

/// Grid (kvHeads, rows). A thread block makes the probabilities of a KV head from the tiles' sums, chooses the chunks,
/// gives slots to those that have none, and writes the list of misses and the report. Shared memory: ranking keys
/// [maxChunks], free slots [chosen], flags [maxChunks].
__global__ void __launch_bounds__(kChoiceWarps* kWarp) choiceKernel(ShadowChoiceArgs a) {
    extern __shared__ std::uint32_t keys[];
    __shared__ BlockCounter<kChoiceWarps>::Shared counts;
    __shared__ float logSums[32];
    constexpr int kAll = kChoiceWarps * kWarp;
    const ShadowMemory& m = a.memory;
    std::int32_t* freeSlots = reinterpret_cast<std::int32_t*>(keys + a.maxChunks);
    std::uint8_t* flags = reinterpret_cast<std::uint8_t*>(freeSlots + m.chosen);
    const int g = blockIdx.x, row = blockIdx.y, group = m.shape.queryHeads / m.shape.kvHeads;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    if (g == 0 && row == 0 && threadIdx.x == 0) {
        stamp(a.chooseMark);
        if (a.report != nullptr) *a.report = {};
    }
    if (a.active != nullptr && a.active[row] == 0) return;
    const int sequence = a.firstSequence + row, head = sequence * m.shape.kvHeads + g, item = row * m.shape.kvHeads + g;
    const ShadowCounts here = m.counts[sequence];
    const int chunks = here.chunks, tiles = (chunks + kTileChunks - 1) / kTileChunks,
              mostTiles = (a.maxChunks + kTileChunks - 1) / kTileChunks;
    const std::size_t firstQuery = std::size_t(row) * m.shape.queryHeads + std::size_t(g) * group;
    BlockCounter<kChoiceWarps> counter(counts);
    for (int h = warp; h < group;
         h += kChoiceWarps) { // logSums[h]: the base-2 log of the sum of exponentials of query head h
        const float* partial = a.partial + (firstQuery + h) * mostTiles * 2;
        float maximum = -INFINITY, sum = 0;
        for (int t = lane; t < tiles; t += kWarp) maximum = fmaxf(maximum, partial[2 * t]);
        maximum = warpMax(maximum);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
        for (int t = lane; t < tiles; t += kWarp) sum += partial[2 * t + 1] * exp2f(partial[2 * t] - reference);
        sum = warpSum(sum);
        if (lane == 0) logSums[h] = reference + log2f(sum);
    }
    __syncthreads();
    // The base-2 log of the largest probability that a query head of the group gives the chunk.
    const auto score = [&](int chunk) {
        float best = -INFINITY;
        for (int h = 0; h < group; ++h)
            best = fmaxf(best, a.logits[(firstQuery + h) * a.maxChunks + chunk] - logSums[h]);
        return best;
    };
    const std::uint8_t* isOutlier = m.isOutlier + m.chunkFirst[head];
    constexpr int kTogether = 4; // chunks whose logits are loaded together
    for (int base = threadIdx.x; base < chunks; base += kAll * kTogether) {
        float best[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; ++t) best[t] = -INFINITY;
        for (int h = 0; h < group; ++h) {
            const float* logits = a.logits + (firstQuery + h) * a.maxChunks;
            float logit[kTogether];
#pragma unroll
            for (int t = 0; t < kTogether; ++t) logit[t] = logits[min(base + t * kAll, chunks - 1)];
#pragma unroll
            for (int t = 0; t < kTogether; ++t) best[t] = fmaxf(best[t], logit[t] - logSums[h]);
        }
#pragma unroll
        for (int t = 0; t < kTogether; ++t) {
            const int i = base + t * kAll;
            if (i >= chunks) break;
            keys[i] = isOutlier[i] != 0 ? 0 : rankingKey(best[t]);
            flags[i] = 0;
        }
    }
    __syncthreads();
    takeLargest(keys, chunks, here.chosen, counter, [&](int i) { flags[i] = kChosen; });
    __syncthreads();

    // Chosen chunks that have a slot keep it. The other chosen chunks take the free slots, both in ascending order.
    std::int32_t* slotChunk = m.slotChunk + std::size_t(head) * m.chosen;
    int stayed = 0;
    for (int base = 0, free = 0; base < here.chosen; base += kAll) {
        const int slot = base + int(threadIdx.x);
        const int chunk = slot < here.chosen ? slotChunk[slot] : -1;
        const bool stays = chunk >= 0 && flags[chunk] != 0, empty = slot < here.chosen && !stays;
        if (stays) flags[chunk] = kChosen | kThere; // no other thread writes here: a chunk has one slot
        stayed += stays ? 1 : 0;
        int total = 0;
        const int place = free + counter.prefix(empty ? 1 : 0, total);
        if (empty) freeSlots[place] = slot;
        free += total;
    }
    stayed = counter.sum(stayed); // has a barrier, behind which all threads see `flags` and `freeSlots`
    const int perThread = (chunks + kAll - 1) / kAll, begin = min(int(threadIdx.x) * perThread, chunks),
              end = min(begin + perThread, chunks);
    int mine = 0, missing = 0, all = 0, missed = 0;
    for (int i = begin; i < end; ++i) {
        mine += flags[i] != 0 ? 1 : 0;
        missing += flags[i] == kChosen ? 1 : 0;
    }
    int at = counter.prefix(mine, all), missAt = counter.prefix(missing, missed);
    const std::size_t list = std::size_t(item) * m.chosen;
    for (int i = begin; i < end; ++i) {
        if (flags[i] == 0) continue;
        const bool there = flags[i] != kChosen;
        if (a.reportChunks != nullptr) a.reportChunks[list + at] = PackedBlock(i, Origin::QueryAware, there);
        if (a.reportScores != nullptr) a.reportScores[list + at] = exp2f(score(i));
        ++at;
        if (there) continue;
        const int slot = freeSlots[missAt];
        slotChunk[slot] = i;
        a.misses[list + missAt] = {i, slot};
        ++missAt;
    }
    if (threadIdx.x != 0) return;
    a.missCount[item] = missed;
    if (a.reportHeads != nullptr)
        a.reportHeads[item] = {a.position != nullptr ? a.position[row] : 0, stayed, missed, 0};
}

/// Grid (parts, kvHeads, rows). The first `valueParts` thread blocks of a head copy the values of missed chunks. The
/// others rebuild the keys: each warp rebuilds those of 16 tokens at a time. They read the head's basis from shared
/// memory, in rows that are basisStride elements apart, or from global memory where it does not fit.
template <int kDim>
__global__ void __launch_bounds__(kThreads) fetchKernel(ShadowFetchArgs a, int valueParts, int basisStride) {
    extern __shared__ uint4 raw[];
    const ShadowMemory& m = a.memory;
    const int g = blockIdx.y, row = blockIdx.z, bs = m.shape.blockSize, size = m.chunkTokens;
    const int sequence = a.firstSequence + row, head = sequence * m.shape.kvHeads + g, item = row * m.shape.kvHeads + g;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && g == 0 && row == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.report != nullptr) a.report->begun = globalTimer();
    }
    if (a.active != nullptr && a.active[row] == 0) return;
    const int count = a.missCount[item];
    if (count == 0) return;
    const ShadowMiss* misses = a.misses + std::size_t(item) * m.chosen;
    Bf16* pool = m.pool + std::size_t(m.poolFirst[head]) * blockElements(bs, kDim);
    if (int(blockIdx.x) < valueParts) {
        const Bf16* values = m.values + std::size_t(m.chunkFirst[head]) * kDim * size;
        if (size % 8 == 0) {
            const int pieces = kDim * size / 8, all = count * pieces;
#pragma unroll 4
            for (int i = int(blockIdx.x) * kThreads + int(threadIdx.x); i < all; i += valueParts * kThreads) {
                const ShadowMiss miss = misses[i / pieces];
                const int element = i % pieces * 8, c = element / size, at = miss.slot * size + element % size;
                *reinterpret_cast<uint4*>(pool + std::size_t(at / bs) * blockElements(bs, kDim) +
                                          std::size_t(bs) * kDim + std::size_t(c) * bs + at % bs) =
                    loadOnce(values + std::size_t(miss.chunk) * kDim * size + element);
            }
        } else {
            const int elements = kDim * size;
            for (int i = int(blockIdx.x) * kThreads + int(threadIdx.x); i < count * elements;
                 i += valueParts * kThreads) {
                const ShadowMiss miss = misses[i / elements];
                const int element = i % elements, c = element / size, at = miss.slot * size + element % size;
                pool[std::size_t(at / bs) * blockElements(bs, kDim) + std::size_t(bs) * kDim + std::size_t(c) * bs +
                     at % bs] = values[std::size_t(miss.chunk) * elements + element];
            }
        }
        if (m.poolScores != nullptr && blockIdx.x == 0)
            for (int i = threadIdx.x; i < count * size; i += kThreads) {
                const ShadowMiss miss = misses[i / size];
                m.poolScores[std::size_t(m.poolFirst[head]) * bs + miss.slot * size + i % size] =
                    m.tokenScores[m.scoreFirst[head] + miss.chunk * size + i % size];
            }
        __syncthreads();
        if (threadIdx.x == 0 && a.report != nullptr) atomicMax(&a.report->valuesDone, globalTimer());
        return;
    }
    const int part = int(blockIdx.x) - valueParts, parts = int(gridDim.x) - valueParts;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, inTile = lane / 4, quad = lane % 4;
    const int tokens = count * size, tiles = (tokens + 15) / 16, rank = m.paddedRank;
    if (part * kWarps >= tiles) return;
    const Bf16* basis = m.basis + std::size_t(head) * kDim * rank;
    int stride = rank;
    if (basisStride > 0) {
        Bf16* copy = reinterpret_cast<Bf16*>(raw);
        for (int i = threadIdx.x; i < kDim * rank / 8; i += kThreads) {
            const int c = i / (rank / 8), at = i % (rank / 8) * 8;
            *reinterpret_cast<uint4*>(copy + c * basisStride + at) =
                *reinterpret_cast<const uint4*>(basis + std::size_t(c) * rank + at);
        }
        __syncthreads();
        basis = copy;
        stride = basisStride;
    }
    const Bf16* u = m.u + m.tokenFirst[sequence] * rank;
    for (int tile = part * kWarps + warp; tile < tiles; tile += parts * kWarps) {
        int token[2], at[2]; // this lane's two tokens, and their places in the pool
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int i = tile * 16 + inTile + 8 * e;
            const ShadowMiss miss = misses[min(i, tokens - 1) / size];
            token[e] = miss.chunk * size + min(i, tokens - 1) % size;
            at[e] = i < tokens ? miss.slot * size + i % size : -1;
        }
        float key[kDim / 8][4] = {};
        for (int k = 0; k < rank; k += 16) {
            const auto word = [&](int e, int column) {
                return *reinterpret_cast<const std::uint32_t*>(u + std::size_t(token[e]) * rank + k + column);
            };
            const std::uint32_t a0 = word(0, quad * 2), a1 = word(1, quad * 2), a2 = word(0, quad * 2 + 8),
                                a3 = word(1, quad * 2 + 8);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                const Bf16* column = basis + std::size_t(i * 8 + inTile) * stride + k + quad * 2;
                mma16816(key[i], a0, a1, a2, a3, *reinterpret_cast<const std::uint32_t*>(column),
                         *reinterpret_cast<const std::uint32_t*>(column + 8));
            }
        }
        // One lane has the channels c, c + 1 and c + dim/2 of a token, and can rotate them.
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            if (at[e] < 0) continue;
            const std::size_t angles = std::size_t(a.ropeFirst[sequence] + token[e]) * (kDim / 2);
            Bf16* to = pool + std::size_t(at[e] / bs) * blockElements(bs, kDim) + std::size_t(at[e] % bs) * kDim;
            if (a.interleaved) {
#pragma unroll
                for (int i = 0; i < kDim / 8; ++i) {
                    const int c = i * 8 + quad * 2;
                    const float u = a.cos[angles + c / 2], v = a.sin[angles + c / 2], x = key[i][2 * e],
                                y = key[i][2 * e + 1];
                    *reinterpret_cast<std::uint32_t*>(to + c) = packBf16(x * u - y * v, y * u + x * v);
                }
                continue;
            }
#pragma unroll
            for (int i = 0; i < kDim / 16; ++i) {
                const int c = i * 8 + quad * 2;
                const float2 u2 = *reinterpret_cast<const float2*>(a.cos + angles + c),
                             v2 = *reinterpret_cast<const float2*>(a.sin + angles + c);
                const float x0 = key[i][2 * e], x1 = key[i][2 * e + 1], y0 = key[i + kDim / 16][2 * e],
                            y1 = key[i + kDim / 16][2 * e + 1];
                *reinterpret_cast<std::uint32_t*>(to + c) = packBf16(x0 * u2.x - y0 * v2.x, x1 * u2.y - y1 * v2.y);
                *reinterpret_cast<std::uint32_t*>(to + c + kDim / 2) =
                    packBf16(y0 * u2.x + x0 * v2.x, y1 * u2.y + x1 * v2.y);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && a.report != nullptr) atomicMax(&a.report->keysDone, globalTimer());
}

} // namespace

int shadowTiles(int maxChunks) { return (maxChunks + kTileChunks - 1) / kTileChunks; }

void appendToPool(const Launch& how, const ShadowAppendArgs& args) {
    if (args.rows == 0) return;
    const AttentionShape& shape = args.memory.shape;
    launch(how, {dim3(unsigned(shape.kvHeads), unsigned(args.rows)), dim3(unsigned(shape.dim))}, appendKernel,
           "appending to the pool", args);
}

void chooseChunks(const Launch& how, const ShadowChoiceArgs& args) {
    if (args.rows == 0) return;
    const AttentionShape& shape = args.memory.shape;
    const unsigned heads = unsigned(shape.kvHeads), rows = unsigned(args.rows);
    const std::size_t shared = std::size_t(args.maxChunks) * 5 + std::size_t(args.memory.chosen) * 4;
    if (shared > sharedRoom(how, choiceKernel)) refuseContext(args.maxChunks, args.memory.chunkTokens);
    launch(how, {dim3(unsigned(std::max(1, shadowTiles(args.maxChunks))), heads, rows), dim3(kThreads)},
           shape.dim == 64 ? scoreKernel<64> : scoreKernel<128>, "scoring chunks", args);
    allowShared(choiceKernel, shared, "preparing the choice of chunks");
    launch(how, {dim3(heads, rows), dim3(kChoiceWarps * kWarp), shared}, choiceKernel, "choosing chunks", args);
}

void fetchChunks(const Launch& how, const ShadowFetchArgs& args) {
    const ShadowMemory& m = args.memory;
    if (args.rows == 0) return;
    const int items = args.rows * m.shape.kvHeads;
    // Two thread blocks for each multiprocessor: one that fetches values and one that rebuilds keys.
    const int parts = std::clamp(how.multiprocessors / std::max(1, items), 1, 8);
    const int padded = m.paddedRank + 8;
    const std::size_t wanted = std::size_t(m.shape.dim) * std::size_t(padded) * sizeof(Bf16);
    const auto kernel = m.shape.dim == 64 ? fetchKernel<64> : fetchKernel<128>;
    constexpr std::size_t kHalfOfMultiprocessor = 96 << 10; // lets a multiprocessor of Hopper hold two thread blocks
    const bool fits = wanted <= std::min(kHalfOfMultiprocessor, sharedRoom(how, kernel));
    if (fits) allowShared(kernel, wanted, "preparing the keys");
    launch(
        how,
        {dim3(unsigned(2 * parts), unsigned(m.shape.kvHeads), unsigned(args.rows)), dim3(kThreads), fits ? wanted : 0},
        kernel, "fetching values and rebuilding keys", args, parts, fits ? padded : 0);
}

} // namespace kvscope::cuda
