#include "kernels/cuda/select.h"

#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/copy_ring.cuh"
#include "kernels/cuda/launch.cuh"

#include <algorithm>
#include <type_traits>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxCluster = 8;
constexpr int kMostItems = 32;       // blocks per thread: 8192 blocks
constexpr std::uint8_t kFree = 0xff; // not selected yet

/// Total order of scores as unsigned numbers: larger score, larger key; NaN is the lowest, like -inf.
__device__ inline std::uint32_t keyOf(float score) {
    if (isnan(score)) score = -INFINITY;
    const std::uint32_t bits = __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// What a launch fixes, so that no thread divides; offsets are bytes of shared memory from its start.
struct Plan {
    int group = 1, rankShift = 0, blocksPerRank = 0;
    int windowsPerRank = 0; // including the ones that reach in from the rank before
    Divider byStride, byBlock, byHeads;
    unsigned exponentials = 0, windowSums = 0, aware = 0, agnostic = 0, slotOf = 0, origin = 0, freeSlots = 0,
             keptSlots = 0, list = 0;
    std::size_t total = 0;

    Plan(const SelectArgs& a, int ranks)
        : group(a.score == SelectArgs::Score::PooledProduct ? 1 : a.shape.group()),
          blocksPerRank((a.maxBlocks + ranks - 1) / ranks), byStride(a.index.stride), byBlock(a.shape.blockSize),
          byHeads(a.shape.kvHeads) {
        while (1 << rankShift < ranks) ++rankShift;
        if (a.score == SelectArgs::Score::PooledSoftmax || a.score == SelectArgs::Score::PooledProduct)
            windowsPerRank =
                (blocksPerRank * a.shape.blockSize / a.index.stride + a.index.kernel / a.index.stride + 8) / 8 * 8;
        const auto take = [&](std::size_t bytes) {
            const std::size_t here = total;
            total = (total + bytes + 15) / 16 * 16;
            return unsigned(here);
        };
        const auto blocks = std::size_t(a.maxBlocks);
        // The range bound keeps the queries here instead.
        exponentials = take(std::size_t(group) * 4 *
                            std::size_t(a.score == SelectArgs::Score::RangeBound ? a.shape.dim : windowsPerRank));
        windowSums = take(a.score == SelectArgs::Score::PooledSoftmax ? std::size_t(windowsPerRank) * 4 : 0);
        aware = take(blocks * 4);
        agnostic = take(a.agnostic ? blocks * 4 : 0);
        origin = take(blocks);
        slotOf = take(a.slots > 0 ? blocks * 4 : 0);
        freeSlots = take(std::size_t(a.slots) * 4);
        keptSlots = take(std::size_t(a.slots));
        list = take(std::size_t(a.capacity) * 8); // blocks, then slots
    }
};

struct Small {
    float maxima[kWarps][32], sums[kWarps][32]; // per warp and query head
    float maximum[32], sum[32], factor[32];     // per query head
    int counts[2][kWarps];
    std::uint32_t keys[2 * kThreads], threshold;
    bool exact;
};

__device__ inline std::uint32_t hashOf(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    std::uint32_t x = a * 0x9E3779B1u ^ b * 0x85EBCA77u ^ c * 0xC2B2AE3Du;
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    x = (x ^ x >> 12) * 0x297A2D39u;
    return x ^ x >> 15;
}

/// Sum over the block; every thread gets it. `turn` alternates between calls, so that one barrier each is enough.
__device__ inline int blockSum(int value, Small& small, int& turn) {
    turn ^= 1;
    const int warpTotal = __reduce_add_sync(0xffffffffu, value);
    if (threadIdx.x % kWarp == 0) small.counts[turn][threadIdx.x / kWarp] = warpTotal;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += small.counts[turn][w];
    return total;
}

/// Sum of the values of the threads before this one; `total` gets the sum of all.
__device__ inline int blockPrefix(int value, Small& small, int& turn, int& total) {
    turn ^= 1;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int inclusive = value;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (lane >= offset) inclusive += other;
    }
    if (lane == kWarp - 1) small.counts[turn][warp] = inclusive;
    __syncthreads();
    int before = inclusive - value;
    total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        const int count = small.counts[turn][w];
        if (w < warp) before += count;
        total += count;
    }
    return before;
}

/// Marks the `count` best free blocks by score with `origin`; equal scores: the lower block. A thread holds kItems
/// neighbouring blocks. free: how many are left. Searches the threshold bit by bit and stops when it separates exactly.
template <int kItems>
__device__ void takeBest(const float* scores, std::uint8_t (&origins)[kItems], int blocks, int count, int free,
                         Origin origin, Small& small, int& turn) {
    count = min(count, free);
    if (count <= 0) return;
    std::uint32_t keys[kItems]; // 0: not free
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = int(threadIdx.x) * kItems + i;
        keys[i] = b < blocks && origins[i] == kFree ? keyOf(scores[b]) : 0;
    }
    std::uint32_t threshold = 0;
    bool exact = false;
    if constexpr (kItems <= 2) { // few: one warp searches alone, without barriers
        constexpr int kMine = kItems * kWarps;
#pragma unroll
        for (int i = 0; i < kItems; ++i) small.keys[int(threadIdx.x) * kItems + i] = keys[i];
        __syncthreads();
        if (threadIdx.x < kWarp) {
            std::uint32_t all[kMine];
#pragma unroll
            for (int i = 0; i < kMine; ++i) all[i] = small.keys[i * kWarp + threadIdx.x];
            for (int bit = 31; bit >= 0 && !exact; --bit) {
                const std::uint32_t candidate = threshold | 1u << bit;
                int above = 0;
#pragma unroll
                for (int i = 0; i < kMine; ++i) above += all[i] >= candidate ? 1 : 0;
                const int total = __reduce_add_sync(0xffffffffu, above);
                if (total >= count) threshold = candidate;
                exact = total == count;
            }
            if (threadIdx.x == 0) small.threshold = threshold, small.exact = exact;
        }
        __syncthreads();
        threshold = small.threshold;
        exact = small.exact;
    }
    for (int bit = kItems <= 2 ? -1 : 31; bit >= 0 && !exact; --bit) {
        const std::uint32_t candidate = threshold | 1u << bit;
        int above = 0;
#pragma unroll
        for (int i = 0; i < kItems; ++i) above += keys[i] >= candidate ? 1 : 0;
        const int total = blockSum(above, small, turn);
        if (total >= count) threshold = candidate;
        exact = total == count;
    }
    // Everything above the threshold, then of the equal ones the lowest blocks.
    int above = 0, equal = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        above += keys[i] > threshold ? 1 : 0;
        equal += keys[i] == threshold && threshold != 0 ? 1 : 0;
    }
    int ties = 0x7fffffff, before = 0;
    if (!exact) {
        int total = 0;
        ties = count - blockSum(above, small, turn);
        before = blockPrefix(equal, small, turn, total);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        if (keys[i] == 0) continue;
        if (keys[i] > threshold || (exact && keys[i] >= threshold))
            origins[i] = std::uint8_t(origin);
        else if (!exact && keys[i] == threshold && before++ < ties)
            origins[i] = std::uint8_t(origin);
    }
}

/// Logits of the windows [first, end) against the group's queries, 8 windows a tile, through the tensor cores; with
/// each warp's maximum and sum of exponentials per head over the windows from `owned` on.
template <int kDim>
__device__ void windowLogits(const SelectArgs& a, const Bf16* q, const Bf16* keys, int group, int first, int owned,
                             int end, float* out, int stride, Small& small) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    constexpr int kChunks = kDim / 32;
    constexpr bool kKept = kDim <= 128; // queries in registers; wider ones come from the cache, tile after tile
    const float factor = a.score == SelectArgs::Score::PooledProduct ? 1.f : a.scale * kLog2e;
    for (int headBase = 0; headBase < group; headBase += 16) {
        const auto loadQuery = [&](int c, std::uint32_t(&f)[2][4]) {
            uint4 low = make_uint4(0, 0, 0, 0), high = low;
            if (headBase + row < group)
                low = *reinterpret_cast<const uint4*>(q + (headBase + row) * kDim + c * 32 + quad * 8);
            if (headBase + row + 8 < group)
                high = *reinterpret_cast<const uint4*>(q + (headBase + row + 8) * kDim + c * 32 + quad * 8);
            f[0][0] = low.x, f[0][1] = high.x, f[0][2] = low.y, f[0][3] = high.y;
            f[1][0] = low.z, f[1][1] = high.z, f[1][2] = low.w, f[1][3] = high.w;
        };
        std::uint32_t f[kKept ? kChunks : 1][2][4];
        if constexpr (kKept) {
#pragma unroll
            for (int c = 0; c < kChunks; ++c) loadQuery(c, f[c]);
        }
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
        constexpr int kTogether = 2; // tiles whose loads are in flight together: a warp of a cluster often has no more
        for (int tile = first + warp * 8 * kTogether; tile < end; tile += kWarps * 8 * kTogether) {
            float logits[kTogether][4] = {};
            if constexpr (kKept) {
                uint4 k[kTogether][kChunks];
#pragma unroll
                for (int t = 0; t < kTogether; ++t) {
                    const int window = min(tile + t * 8 + row, end - 1);
#pragma unroll
                    for (int c = 0; c < kChunks; ++c)
                        k[t][c] = loadOnce(keys + std::size_t(window) * kDim + c * 32 + quad * 8);
                }
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
#pragma unroll
                    for (int c = 0; c < kChunks; ++c) {
                        mma16816(logits[t], f[c][0][0], f[c][0][1], f[c][0][2], f[c][0][3], k[t][c].x, k[t][c].y);
                        mma16816(logits[t], f[c][1][0], f[c][1][1], f[c][1][2], f[c][1][3], k[t][c].z, k[t][c].w);
                    }
            } else {
#pragma unroll 3
                for (int c = 0; c < kChunks; ++c) {
                    loadQuery(c, f[0]);
#pragma unroll
                    for (int t = 0; t < kTogether; ++t) {
                        const int window = min(tile + t * 8 + row, end - 1);
                        const uint4 k = loadOnce(keys + std::size_t(window) * kDim + c * 32 + quad * 8);
                        mma16816(logits[t], f[0][0][0], f[0][0][1], f[0][0][2], f[0][0][3], k.x, k.y);
                        mma16816(logits[t], f[0][1][0], f[0][1][1], f[0][1][2], f[0][1][3], k.z, k.w);
                    }
                }
            }
            float next[2] = {maximum[0], maximum[1]};
#pragma unroll
            for (int t = 0; t < kTogether; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int window = tile + t * 8 + quad * 2 + e % 2, head = headBase + row + e / 2 * 8;
                    logits[t][e] *= factor; // of a softmax, base 2 from here on
                    if (window < end && head < group) out[std::size_t(head) * stride + window - first] = logits[t][e];
                    if (window < owned || window >= end) logits[t][e] = -INFINITY;
                    next[e / 2] = fmaxf(next[e / 2], logits[t][e]);
                }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (next[h] == -INFINITY) continue;
                sum[h] *= exp2f(maximum[h] - next[h]);
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    sum[h] += exp2f(logits[t][2 * h] - next[h]) + exp2f(logits[t][2 * h + 1] - next[h]);
                maximum[h] = next[h];
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) {
                const float theirs = __shfl_xor_sync(0xffffffffu, maximum[h], offset),
                            other = __shfl_xor_sync(0xffffffffu, sum[h], offset);
                const float both = fmaxf(maximum[h], theirs), reference = both == -INFINITY ? 0.f : both;
                sum[h] = sum[h] * exp2f(maximum[h] - reference) + other * exp2f(theirs - reference);
                maximum[h] = both;
            }
            if (quad == 0)
                small.maxima[warp][headBase + row + 8 * h] = maximum[h],
                                                        small.sums[warp][headBase + row + 8 * h] = sum[h];
        }
    }
}

template <int kDim, int kItems> __global__ void __launch_bounds__(kThreads) selectKernel(SelectArgs a, Plan plan) {
    extern __shared__ uint4 raw[];
    __shared__ Small small;
    char* shared = reinterpret_cast<char*>(raw);
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    float* exponentials = reinterpret_cast<float*>(shared + plan.exponentials);
    float* windowSums = reinterpret_cast<float*>(shared + plan.windowSums);
    float* aware = reinterpret_cast<float*>(shared + plan.aware);
    float* agnostic = reinterpret_cast<float*>(shared + plan.agnostic);
    std::uint8_t* origins = reinterpret_cast<std::uint8_t*>(shared + plan.origin);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int item = blockIdx.x >> plan.rankShift, row = plan.byHeads(item), g = item - row * a.shape.kvHeads;
    const int group = plan.group, bs = a.shape.blockSize;
    const bool reports = item == 0 && rank == 0 && threadIdx.x == 0;
    letNextKernelStart();
    cluster.barrier_arrive(); // a block's shared memory exists for others once it has started
    // Positions change only at a step's end, so they may be read before the wait.
    const int sequence = a.oneSequence ? a.sequence : row, head = sequence * a.shape.kvHeads + g;
    const int position = a.position[row];
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (reports) stamp(a.marks[0]);
    cluster.barrier_wait();
    if (!active) return; // the whole cluster leaves
    const int current = plan.byBlock(position), blocks = current + 1, tokens = position + 1;
    const bool dense = tokens < a.denseBelowTokens;
    const Bf16* q = a.q + std::size_t(item) * group * kDim;

    // ---- Scores of this rank's blocks, sent to rank 0
    const int perRank = (blocks + ranks - 1) >> plan.rankShift;
    const int firstBlock = min(rank * perRank, blocks), endBlock = min(firstBlock + perRank, blocks);
    float* awareAtRank0 = cluster.map_shared_rank(aware, 0);
    float* agnosticAtRank0 = cluster.map_shared_rank(agnostic, 0);
    const int seen = tokens - a.unseen;
    const int windows = seen < a.index.kernel ? 0 : plan.byStride(seen - a.index.kernel) + 1;
    const auto firstWindowOf = [&](int block) {
        const int token = block * bs;
        return token < a.index.kernel ? 0 : plan.byStride(token - a.index.kernel) + 1;
    };
    const auto endWindowOf = [&](int block) {
        return min(plan.byStride((block + 1) * bs + a.index.stride - 1), windows);
    };
    const bool product = a.score == SelectArgs::Score::PooledProduct;
    if (!dense && (product || a.score == SelectArgs::Score::PooledSoftmax)) {
        const int begin = firstBlock < endBlock ? min(firstWindowOf(firstBlock), windows) : 0;
        const int end = firstBlock < endBlock ? max(begin, endWindowOf(endBlock - 1)) : 0;
        const int stride = plan.windowsPerRank, count = end - begin;
        const Bf16* keys = a.index.pooledKeys + std::size_t(a.index.windowFirst[head]) * kDim;
        // Windows that start in an earlier rank's blocks are seen here too, and counted there.
        const int owned = plan.byStride(firstBlock * bs + a.index.stride - 1);
        windowLogits<kDim>(a, q, keys, group, begin, owned, end, exponentials, stride, small);
        __syncthreads();
        if (product) windowSums = exponentials; // the products of the only query
        if (!product && int(threadIdx.x) < group) {
            const int h = threadIdx.x;
            float maximum = -INFINITY, sum = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, small.maxima[w][h]);
            const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) sum += small.sums[w][h] * exp2f(small.maxima[w][h] - reference);
            small.maximum[h] = maximum;
            small.sum[h] = sum;
        }
        if (!product) cluster.sync();
        if (!product && int(threadIdx.x) < group) { // factor: minus the base-2 logarithm of the whole sum
            const int h = threadIdx.x;
            float maxima[kMaxCluster], sums[kMaxCluster], maximum = -INFINITY, sum = 0;
#pragma unroll
            for (int r = 0; r < kMaxCluster; ++r) {
                maxima[r] = r < ranks ? *cluster.map_shared_rank(&small.maximum[h], r) : -INFINITY;
                sums[r] = r < ranks ? *cluster.map_shared_rank(&small.sum[h], r) : 0.f;
                maximum = fmaxf(maximum, maxima[r]);
            }
#pragma unroll
            for (int r = 0; r < kMaxCluster; ++r)
                if (maxima[r] != -INFINITY) sum += sums[r] * exp2f(maxima[r] - maximum);
            small.factor[h] = sum > 0 ? -(maximum + log2f(sum)) : 0.f;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < count && !product; i += kThreads) {
            float sum = 0;
            for (int h = 0; h < group; ++h) sum += exp2f(exponentials[std::size_t(h) * stride + i] + small.factor[h]);
            windowSums[i] = sum;
        }
        __syncthreads();
        for (int b = firstBlock + threadIdx.x; b < endBlock; b += kThreads) {
            float best = -INFINITY;
            for (int c = firstWindowOf(b); c < endWindowOf(b); ++c) best = fmaxf(best, windowSums[c - begin]);
            awareAtRank0[b] = best;
        }
    } else if (!dense && a.score == SelectArgs::Score::RangeBound) {
        for (int i = threadIdx.x; i < group * kDim; i += kThreads) exponentials[i] = __bfloat162float(q[i]);
        __syncthreads();
        constexpr int kMine = kDim / kWarp;
        for (int b = firstBlock + warp; b < endBlock; b += kWarps) {
            const Bf16* range = a.index.ranges + std::size_t(a.index.blockFirst[head] + b) * 2 * kDim;
            float low[kMine], high[kMine];
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
                low[i] = __bfloat162float(range[lane + i * kWarp]);
                high[i] = __bfloat162float(range[kDim + lane + i * kWarp]);
            }
            float total = a.rangeReduce == GroupReduce::Sum ? 0.f : -INFINITY;
            for (int h = 0; h < group; ++h) {
                float sum = 0;
#pragma unroll
                for (int i = 0; i < kMine; ++i) {
                    const float value = exponentials[h * kDim + lane + i * kWarp];
                    sum += fmaxf(value * low[i], value * high[i]);
                }
                sum = warpSum(sum);
                total = a.rangeReduce == GroupReduce::Sum ? total + sum : fmaxf(total, sum);
            }
            if (lane == 0) awareAtRank0[b] = total;
        }
    }
    if (!dense && a.score == SelectArgs::Score::Given) {
        const float* scores = a.givenScores + std::size_t(item) * a.maxBlocks;
        for (int b = firstBlock + threadIdx.x; b < endBlock; b += kThreads) awareAtRank0[b] = scores[b];
    }
    if (!dense && a.agnostic) {
        const float* scores = a.index.pooledScores + a.index.windowFirst[head];
        for (int b = firstBlock + threadIdx.x; b < endBlock; b += kThreads) {
            float best = -INFINITY;
            for (int c = firstWindowOf(b); c < endWindowOf(b); ++c) {
                const float value = scores[c];
                best = fmaxf(best, isnan(value) ? -INFINITY : value);
            }
            agnosticAtRank0[b] = best;
        }
    }
    cluster.sync(); // rank 0 has everything; nobody reads this block's shared memory any more
    if (rank != 0) return;

    // ---- Two-phase top-k: a thread holds kItems neighbouring blocks
    if (reports) stamp(a.marks[1]);
    if (a.planted >= 0) {
        for (int b = threadIdx.x; b < blocks; b += kThreads) {
            const auto drawn = [&](std::uint32_t salt) {
                return float(hashOf(std::uint32_t(head), std::uint32_t(b), salt)) * 0x1p-32f;
            };
            // Every block draws anew once in 1/planted steps, each at its own time.
            aware[b] = drawn(2 + std::uint32_t(float(position) * a.planted + drawn(0)));
            if (a.agnostic) agnostic[b] = drawn(1);
        }
        __syncthreads();
    }
    const int firstWindow = current - a.budget.window + (a.budget.windowAddsCurrent ? 0 : 1);
    const int sinks = min(a.budget.sink, blocks),
              forced = dense ? blocks : sinks + max(0, blocks - max(firstWindow, sinks));
    const int firstMine = int(threadIdx.x) * kItems;
    std::uint8_t mine[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = firstMine + i;
        mine[i] = b < a.budget.sink           ? std::uint8_t(Origin::Sink)
                  : b >= firstWindow || dense ? std::uint8_t(Origin::Window)
                                              : kFree;
    }
    int turn = 0;
    if (a.chosen != nullptr && !dense) { // the choice was made elsewhere
        for (int b = threadIdx.x; b < blocks; b += kThreads) origins[b] = kFree;
        __syncthreads();
        const int given = a.chosenCount[item];
        for (int i = threadIdx.x; i < given; i += kThreads) {
            const std::size_t at = std::size_t(item) * a.capacity + i;
            const int b = int(a.chosen[at] & 0xffffff);
            if (b >= blocks) continue;
            origins[b] = std::uint8_t(a.chosen[at] >> kOriginShift & 7);
            aware[b] = a.chosenScores != nullptr ? a.chosenScores[at] : __uint_as_float(0x7fc00000u);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kItems; ++i) mine[i] = firstMine + i < blocks ? origins[firstMine + i] : kFree;
    } else {
        takeBest<kItems>(aware, mine, blocks, a.budget.queryAware, blocks - forced, Origin::QueryAware, small, turn);
        const int taken = max(0, min(a.budget.queryAware, blocks - forced));
        takeBest<kItems>(agnostic, mine, blocks, a.budget.queryAgnostic, blocks - forced - taken, Origin::QueryAgnostic,
                         small, turn);
    }

    // ---- The ascending list, and what stays from the step before
    if (reports) stamp(a.marks[2]);
    std::int32_t* listOut = a.listBlock + std::size_t(item) * a.capacity;
    std::int32_t* list = reinterpret_cast<std::int32_t*>(shared + plan.list);
    constexpr int kBytes = (kItems + 7) / 8; // of the bitmap, per thread
    std::uint8_t* previous =
        a.previous != nullptr
            ? a.previous + std::size_t(head) * selectionBitmapBytes(a.maxBlocks) + threadIdx.x * kBytes
            : nullptr;
    const bool comparable = previous != nullptr && !a.oneSequence && a.hasPrevious[head] != 0 && !dense;
    int chosen = 0, kept = 0;
    std::uint8_t bitmap[kBytes] = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = firstMine + i;
        if (b < blocks) origins[b] = mine[i];
        if (b < blocks && mine[i] != kFree) ++chosen, bitmap[i / 8] |= std::uint8_t(1u << i % 8);
    }
    if (previous != nullptr && !a.oneSequence && firstMine < a.maxBlocks) {
#pragma unroll
        for (int i = 0; i < kBytes; ++i) {
            if (comparable) kept += __popc(previous[i] & bitmap[i]);
            previous[i] = bitmap[i];
        }
    }
    int count = 0, at = blockPrefix(chosen, small, turn, count);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = firstMine + i;
        if (b < blocks && mine[i] != kFree && at < a.capacity) list[at] = listOut[at] = b, ++at;
    }
    kept = comparable ? blockSum(kept, small, turn) : -1;
    count = min(count, a.capacity);
    if (threadIdx.x == 0) a.listCount[item] = count;
    __syncthreads();

    // ---- Slots
    const int tokenRow = position - current * bs;
    const int fresh = tokenRow == 0 ? current : -1; // begins now: takes a slot, is not loaded
    int misses = 0;
    if (a.slots > 0) {
        std::int32_t* slotOf = reinterpret_cast<std::int32_t*>(shared + plan.slotOf);
        std::int32_t* freeSlots = reinterpret_cast<std::int32_t*>(shared + plan.freeSlots);
        std::uint8_t* keptSlots = reinterpret_cast<std::uint8_t*>(shared + plan.keptSlots);
        std::int32_t* map = a.map + std::size_t(head) * a.slots;
        std::int32_t* slotsOut = a.listSlot + std::size_t(item) * a.capacity;
        std::int32_t* slots = list + a.capacity;
        std::int32_t* lastUse = a.lastUse != nullptr ? a.lastUse + std::size_t(head) * a.slots : nullptr;
        for (int b = threadIdx.x; b < blocks; b += kThreads) slotOf[b] = -1;
        __syncthreads();
        for (int s = threadIdx.x; s < a.slots; s += kThreads) {
            const std::int32_t block = map[s];
            const bool stays = block >= 0 && block < blocks && origins[block] != kFree;
            keptSlots[s] = stays ? 1 : 0;
            if (stays) slotOf[block] = s;
        }
        __syncthreads();
        if (lastUse == nullptr) {
            for (int base = 0, running = 0; base < a.slots; base += kThreads) {
                const int s = base + int(threadIdx.x);
                const bool free = s < a.slots && keptSlots[s] == 0;
                int total = 0;
                const int place = running + blockPrefix(free ? 1 : 0, small, turn, total);
                if (free) freeSlots[place] = s;
                running += total;
            }
        } else { // longest unused first; equal: the lower block; empty ones before all, by slot
            for (int s = threadIdx.x; s < a.slots; s += kThreads) {
                if (keptSlots[s] != 0) continue;
                const std::int32_t mine = lastUse[s], block = map[s];
                int place = 0;
                for (int other = 0; other < a.slots; ++other) {
                    if (keptSlots[other] != 0 || lastUse[other] > mine) continue;
                    const std::int32_t otherBlock = map[other];
                    if (lastUse[other] < mine || otherBlock < block || (otherBlock == block && other < s)) ++place;
                }
                freeSlots[place] = s;
            }
        }
        __syncthreads();
        int missed = 0;
        for (int base = 0; base < count; base += kThreads) {
            const int i = base + int(threadIdx.x);
            const int block = i < count ? list[i] : 0;
            const bool miss = i < count && slotOf[block] < 0;
            int total = 0;
            const int place = missed + blockPrefix(miss ? 1 : 0, small, turn, total);
            missed += total;
            if (i < count) {
                const int slot = miss ? freeSlots[place] : slotOf[block];
                slots[i] = slotsOut[i] = slot;
                if (miss) {
                    map[slot] = block;
                    if (block != fresh) {
                        const std::uint32_t move = atomicAdd(&a.moves.counts[0], 1u);
                        a.moves.loads[move] = {std::uint32_t(a.storeFirst[head] + block),
                                               std::uint32_t(head * a.slots + slot)};
                    }
                }
                if (lastUse != nullptr) lastUse[slot] = position;
            }
        }
        const bool freshMissed = fresh >= 0 && slotOf[fresh] < 0;
        misses = missed - (freshMissed ? 1 : 0);
        __syncthreads();
        // The new token's key and value go to the tail, which is the last of the list.
        const int tail = slots[count - 1];
        Bf16* block = a.pool + (std::size_t(head) * a.slots + tail) * blockElements(a.shape);
        for (int c = threadIdx.x; c < kDim && a.newKey != nullptr; c += kThreads) {
            block[tokenRow * kDim + c] = a.newKey[std::size_t(item) * kDim + c];
            if (a.shape.latentValue > 0) continue;
            block[std::size_t(bs) * kDim + std::size_t(c) * bs + tokenRow] = a.newValue[std::size_t(item) * kDim + c];
        }
        if (threadIdx.x == 0 && tokenRow == bs - 1) { // full: goes to the host once; full blocks never change
            const std::uint32_t move = atomicAdd(&a.moves.counts[1], 1u);
            a.moves.writeBacks[move] = {std::uint32_t(a.storeFirst[head] + current),
                                        std::uint32_t(head * a.slots + tail)};
        }
        if (a.recordBlocks != nullptr && !dense)
            for (int i = threadIdx.x; i < count; i += kThreads) {
                const int b = list[i];
                const std::uint32_t hit = b == fresh || slotOf[b] >= 0 ? 1u : 0u;
                a.recordBlocks[std::size_t(item) * a.capacity + i] =
                    std::uint32_t(b) | std::uint32_t(origins[b]) << kOriginShift | hit << kHitShift;
            }
    } else if (a.recordBlocks != nullptr && !dense) {
        for (int i = threadIdx.x; i < count; i += kThreads) {
            const int b = list[i];
            a.recordBlocks[std::size_t(item) * a.capacity + i] =
                std::uint32_t(b) | std::uint32_t(origins[b]) << kOriginShift | 1u << kHitShift;
        }
    }
    if (a.recordScores != nullptr && !dense)
        for (int i = threadIdx.x; i < count; i += kThreads) {
            const int b = list[i];
            a.recordScores[std::size_t(item) * a.capacity + i] =
                a.chosen != nullptr                                 ? aware[b]
                : origins[b] == std::uint8_t(Origin::QueryAgnostic) ? agnostic[b]
                : a.score == SelectArgs::Score::None                ? __uint_as_float(0x7fc00000u)
                                                                    : aware[b];
        }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (a.recordHead != nullptr)
            a.recordHead[item] =
                dense ? SelectionHead{0, -1, 0, misses} : SelectionHead{count, kept, count - misses, misses};
        if (previous != nullptr && !a.oneSequence) a.hasPrevious[head] = dense ? 0 : 1;
        stampLatest(a.endMark);
    }
}

// ---- Gather ---------------------------------------------------------------------------------------------------------

/// One thread of each block drives the copies.
template <int kRing> __global__ void __launch_bounds__(512) gatherKernel(GatherArgs a, int blockBytesTotal) {
    using Part = GatherArgs::Part;
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(8) std::uint64_t barriers[kRing];
    letNextKernelStart();
    waitForEarlierKernels();
    if (threadIdx.x != 0) return;
    const unsigned loads = a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                   writes = a.part == Part::Loads ? 0 : a.moves.counts[1];
    if (blockIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = loads;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = writes;
    }
    if (loads + writes > 0) {
        CopyRing<kRing> ring(stages, barriers);
        moveBlocks(ring, a, loads, writes, blockBytesTotal);
    }
    stampLatest(a.endMark);
#else
    // Plain 16-byte loads, four in flight per thread.
    letNextKernelStart();
    waitForEarlierKernels();
    const std::uint32_t loads = a.part == Part::WriteBacks ? 0 : a.moves.counts[0],
                        writes = a.part == Part::Loads ? 0 : a.moves.counts[1], all = loads + writes;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        stamp(a.mark);
        if (a.recordCounts != nullptr && a.part != Part::WriteBacks) a.recordCounts[0] = loads;
        if (a.recordCounts != nullptr && a.part != Part::Loads) a.recordCounts[1] = writes;
    }
    const int words = blockBytesTotal / 16;
    for (std::uint32_t m = blockIdx.x; m < all; m += gridDim.x) {
        const bool load = m < loads;
        const BlockMove move = load ? a.moves.loads[m] : a.moves.writeBacks[m - loads];
        const char* store = reinterpret_cast<const char*>(a.store) + std::size_t(move.store) * blockBytesTotal;
        char* slot = reinterpret_cast<char*>(a.pool) + std::size_t(move.slot) * blockBytesTotal;
        const uint4* from = reinterpret_cast<const uint4*>(load ? store : slot);
        uint4* to = reinterpret_cast<uint4*>(load ? slot : const_cast<char*>(store));
#pragma unroll 4
        for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = loadOnce(from + i);
        __syncthreads();
        if (threadIdx.x == 0 && load && a.late != nullptr) {
            const auto ready = *static_cast<const volatile std::uint64_t*>(a.ready);
            if (ready > *a.begin) atomicAdd(&a.late[move.slot / a.slots].late, 1u);
        }
    }
    if (threadIdx.x == 0) stampLatest(a.endMark);
#endif
}

} // namespace

void selectBlocksOnDevice(const Launch& how, const SelectArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    unsigned ranks = 1;
    if (how.clusters) // small rows of blocks are not worth a cluster; many rows fill the GPU by themselves
        while (ranks < kMaxCluster && args.maxBlocks > int(ranks) * 32 &&
               args.rows * args.shape.kvHeads * int(ranks) < how.multiprocessors * 2)
            ranks *= 2;
    constexpr std::size_t kSharedLimit = 216 << 10;
    while (how.clusters && ranks < kMaxCluster && Plan(args, int(ranks)).total > kSharedLimit) ranks *= 2;
    const Plan plan(args, int(ranks));
    if (plan.total > kSharedLimit || args.maxBlocks > kMostItems * kThreads)
        refuseContext(args.maxBlocks, args.shape.blockSize);
    const Grid grid{dim3(unsigned(args.rows * args.shape.kvHeads) * ranks), dim3(kThreads), plan.total, ranks};
    const auto choose = [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        return args.maxBlocks <= 2 * kThreads   ? selectKernel<kDim, 2>
               : args.maxBlocks <= 8 * kThreads ? selectKernel<kDim, 8>
                                                : selectKernel<kDim, kMostItems>;
    };
    const auto kernel = args.shape.latentValue > 0 ? choose(std::integral_constant<int, kLatentDim>{})
                        : args.shape.dim == 64     ? choose(std::integral_constant<int, 64>{})
                                                   : choose(std::integral_constant<int, 128>{});
    allowShared(kernel, kSharedLimit, "preparing the selection");
    launch(how, grid, kernel, "selecting blocks", args, plan);
}

void gatherBlocks(const Launch& how, const GatherArgs& args, int blocks) {
    const int bytes = int(blockBytes(args.shape));
    const bool bulk = how.clusters;
    const bool narrow = args.beside && blocks > kFewBlocks;
    const auto kernel = narrow ? gatherKernel<kNarrowRing> : gatherKernel<kWideRing>;
    const std::size_t ring = std::size_t(narrow ? kNarrowRing : kWideRing) * kStageBytes;
    const Grid grid{dim3(unsigned(bulk ? blocks : blocks * 4)), dim3(bulk ? kWarp : 512), bulk ? ring : 0};
    if (bulk) allowShared(kernel, ring, "preparing the transfers");
    if (args.beside) leaveRoom(kernel, "preparing the transfers");
    launch(how, grid, kernel, "moving KV blocks", args, bytes);
}

} // namespace kvscope::cuda
