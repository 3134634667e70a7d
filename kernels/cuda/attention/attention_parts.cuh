// Parts of the decode attention kernels: the running softmax of a warp, the queries as fragments, and the merge of
// attention.cu: of warps, of the thread blocks of a cluster, and of clusters.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

constexpr int kTile = 32;  // tokens a warp takes at once
constexpr int kHeads = 16; // query heads of a tensor-core tile

/// The running softmax of a warp: for 16 query heads the largest logit so far, the sum of the exponentials and the
/// weighted sum of the values [16, kDim]. Lane l holds parts of the heads l/4 and l/4 + 8.
template <int kDim> struct Accumulator {
    float out[kDim / 8][4];
    float maximum[2], sum[2];
    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[i][e] = 0;
        maximum[0] = maximum[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }
};

/// Takes kTiles column tiles of logits into the running softmax: finds the new maximum, scales what has been
/// accumulated to it, and writes the logits' exponentials to `p` as fragments of the product with the values.
template <int kDim, int kTiles>
__device__ inline void advanceSoftmax(float (&logits)[kTiles][4], Accumulator<kDim>& acc,
                                      std::uint32_t (&p)[kTiles][2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float maximum = acc.maximum[h];
#pragma unroll
        for (int j = 0; j < kTiles; ++j) maximum = fmaxf(maximum, fmaxf(logits[j][2 * h], logits[j][2 * h + 1]));
        maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
        const float reference = maximum == -INFINITY ? 0.f : maximum;
        const float factor = exp2f((acc.maximum[h] - reference) * kLog2e);
        acc.sum[h] *= factor;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) acc.out[i][2 * h] *= factor, acc.out[i][2 * h + 1] *= factor;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
            const float low = exp2f((logits[j][2 * h] - reference) * kLog2e);
            const float high = exp2f((logits[j][2 * h + 1] - reference) * kLog2e);
            acc.sum[h] += low + high;
            p[j][h] = packBf16(low, high);
        }
        acc.maximum[h] = maximum;
    }
}

/// Keeps the block ids of a stage's entries: lane i has the id of entry i as `mine`. Lane 0 writes all of them, because
/// it is lane 0 that arrives at the stage's barrier afterwards, for which the readers of the ids wait. All lanes of a
/// warp call this.
template <int kEntries> __device__ inline void keepIds(std::int32_t (&ids)[kEntries], std::int32_t mine) {
#pragma unroll
    for (int i = 0; i < kEntries; ++i) {
        const std::int32_t id = __shfl_sync(0xffffffffu, mine, i);
        if (threadIdx.x % kWarp == 0) ids[i] = id;
    }
}

/// Numbers that are worked out for a launch, so that no thread has to divide.
struct DecodePlan {
    int group = 1, headTiles = 1;
    Divider byBlock;
};

/// Which (row, KV head, 16 of its query heads) a thread block works on.
struct DecodePlace {
    int row, g, headTile, heads; // heads: valid query heads of the tile
    int item;                    // (row, KV head)
    std::size_t cell;            // (row, KV head, head tile)
    std::size_t firstQueryHead;  // counted over the query heads of all rows
    __device__ DecodePlace(const AttentionShape& shape, const DecodePlan& plan)
        : row(plan.headTiles == 1 ? blockIdx.z : blockIdx.z / plan.headTiles), g(blockIdx.y),
          headTile(int(blockIdx.z) - row * plan.headTiles), heads(min(kHeads, plan.group - headTile * kHeads)),
          item(row * shape.kvHeads + g), cell(std::size_t(item) * plan.headTiles + headTile),
          firstQueryHead(std::size_t(row) * shape.queryHeads + std::size_t(g) * plan.group + headTile * kHeads) {}
};

/// A query at `position` sees the keys at the positions p with unsigned(position - p) < reachOf(window).
__device__ inline unsigned reachOf(int window) { return window > 0 ? unsigned(window) : 0x80000000u; }

/// The first block with a token that a query with a sliding window sees; 0 without a window.
__device__ inline int firstInSight(int position, int window, const Divider& byBlock) {
    return window > 0 ? byBlock(max(0, position + 1 - window)) : 0;
}

/// Writes one 64-byte piece of two queries, 16 bytes of each from this lane, as the fragments of two instructions,
/// columns permuted like the keys'. low: of query lane / 4 of a tile of 16, high: of query lane / 4 + 8.
__device__ inline void setFragment(const uint4& low, const uint4& high, std::uint32_t (&fragment)[2][4]) {
    fragment[0][0] = low.x, fragment[0][1] = high.x, fragment[0][2] = low.y, fragment[0][3] = high.y;
    fragment[1][0] = low.z, fragment[1][1] = high.z, fragment[1][2] = low.w, fragment[1][3] = high.w;
}

/// The queries as tensor-core fragments, [64-byte piece][instruction][fragment], columns permuted like the keys'.
template <int kDim>
__device__ inline void loadQueries(const DecodeAttentionArgs& a, const DecodePlace& place,
                                   std::uint32_t (&q)[kDim / 32][2][4]) {
    const int lane = threadIdx.x % kWarp, rowInTile = lane / 4, quad = lane % 4;
    const Bf16* qRow = a.q + place.firstQueryHead * kDim;
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (rowInTile < place.heads) low = *reinterpret_cast<const uint4*>(qRow + rowInTile * kDim + c * 32 + quad * 8);
        if (rowInTile + 8 < place.heads)
            high = *reinterpret_cast<const uint4*>(qRow + (rowInTile + 8) * kDim + c * 32 + quad * 8);
        setFragment(low, high, q[c]);
    }
}

constexpr int kCluster = 8;                      // most thread blocks of a cluster
constexpr int kCell(int dim) { return dim + 2; } // a head's partial result: values, maximum, sum

/// Shared memory of the merge: the results of the warps, then those of the whole thread block.
template <int kDim, int kWarps> struct MergeShared {
    float warps[kWarps][kHeads][kDim];
    float maxima[kWarps][kHeads], sums[kWarps][kHeads];
    float block[kHeads][kDim];
    float maximum[kHeads], sum[kHeads];
};

/// Merges what the first kWarps warps have accumulated. Then every thread block of the cluster merges a few heads from
/// the shared memory of all. Where several clusters share a list, each leaves its result in memory, and the last one to
/// arrive merges the heads from there. All kThreads threads of the thread block call this.
template <int kDim, int kWarps, int kThreads>
__device__ inline void mergeSplits(const DecodeAttentionArgs& a, const DecodePlace& place, Accumulator<kDim>& acc,
                                   MergeShared<kDim, kWarps>& shared) {
    __shared__ bool last;
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, rowInTile = lane / 4, quad = lane % 4;

    // ---- Merge the warps
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        if (warp < kWarps && quad == 0)
            shared.maxima[warp][rowInTile + 8 * h] = acc.maximum[h], shared.sums[warp][rowInTile + 8 * h] = acc.sum[h];
    }
    if (warp < kWarps)
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float2*>(&shared.warps[warp][rowInTile + 8 * h][i * 8 + quad * 2]) =
                    make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
    __syncthreads();
    if (threadIdx.x < kHeads) { // the weights of the warps' results take the place of their maxima
        const int h = threadIdx.x;
        float maximum = -INFINITY, sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) maximum = fmaxf(maximum, shared.maxima[w][h]);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float factor = exp2f((shared.maxima[w][h] - reference) * kLog2e);
            sum += factor * shared.sums[w][h];
            shared.maxima[w][h] = factor;
        }
        shared.maximum[h] = maximum;
        shared.sum[h] = sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < kHeads * kDim / 4; at += kThreads) {
        const int h = at / (kDim / 4), c = at % (kDim / 4) * 4;
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float factor = shared.maxima[w][h];
            const float4 value = *reinterpret_cast<const float4*>(&shared.warps[w][h][c]);
            out.x += factor * value.x, out.y += factor * value.y, out.z += factor * value.z, out.w += factor * value.w;
        }
        *reinterpret_cast<float4*>(&shared.block[h][c]) = out;
    }
    cluster.sync();

    // ---- Merge the cluster: each thread block takes some of the heads
    Bf16* outRow = a.out + place.firstQueryHead * kDim;
    const int perRank = (kHeads + ranks - 1) / ranks, firstHead = rank * perRank,
              endHead = min(firstHead + perRank, place.heads);
    const int clusters = gridDim.x / ranks;
    // partial: [(row, g, head tile)][16 heads][cluster][dim + 2]
    const std::size_t cell = place.cell * kHeads;
    for (int at = threadIdx.x; at < (endHead - firstHead) * (kDim / 2); at += kThreads) {
        const int h = firstHead + at / (kDim / 2), c = at % (kDim / 2) * 2;
        float maximum = -INFINITY, sum = 0;
        float2 out = make_float2(0, 0);
        float theirs[kCluster], weights[kCluster];
        float2 values[kCluster];
#pragma unroll
        for (int r = 0; r < kCluster; ++r) {
            theirs[r] = -INFINITY;
            if (r >= ranks) continue;
            const auto* other = cluster.map_shared_rank(&shared, r);
            theirs[r] = other->maximum[h];
            weights[r] = other->sum[h];
            values[r] = *reinterpret_cast<const float2*>(&other->block[h][c]);
        }
#pragma unroll
        for (int r = 0; r < kCluster; ++r) maximum = fmaxf(maximum, theirs[r]);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
        for (int r = 0; r < kCluster; ++r) {
            if (r >= ranks) continue;
            const float factor = exp2f((theirs[r] - reference) * kLog2e);
            sum += factor * weights[r];
            out.x += factor * values[r].x;
            out.y += factor * values[r].y;
        }
        if (clusters == 1) {
            const float inverse = sum > 0 ? 1.f / sum : 0.f;
            *reinterpret_cast<std::uint32_t*>(outRow + h * kDim + c) = packBf16(out.x * inverse, out.y * inverse);
            if (c == 0 && a.logSums != nullptr) a.logSums[place.firstQueryHead + h] = maximum + logf(sum);
        } else {
            float* to = a.scratch.partial + ((cell + h) * clusters + blockIdx.x / ranks) * kCell(kDim);
            *reinterpret_cast<float2*>(to + c) = out;
            if (c == 0) *reinterpret_cast<float2*>(to + kDim) = make_float2(maximum, sum);
        }
    }
    if (clusters > 1) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            std::uint32_t* arrivals = a.scratch.arrivals + place.cell * kCluster + rank;
            last = atomicAdd(arrivals, 1u) + 1 == std::uint32_t(clusters);
            if (last) *arrivals = 0;
        }
        __syncthreads();
        if (last) {
            __threadfence();
            for (int at = threadIdx.x; at < (endHead - firstHead) * (kDim / 2); at += kThreads) {
                const int h = firstHead + at / (kDim / 2), c = at % (kDim / 2) * 2;
                const float* from = a.scratch.partial + (cell + h) * clusters * kCell(kDim);
                float maximum = -INFINITY, sum = 0;
                float2 out = make_float2(0, 0);
#pragma unroll 8
                for (int s = 0; s < clusters; ++s) {
                    const float2 state = __ldcg(reinterpret_cast<const float2*>(from + s * kCell(kDim) + kDim));
                    const float2 value = __ldcg(reinterpret_cast<const float2*>(from + s * kCell(kDim) + c));
                    const float next = fmaxf(maximum, state.x), reference = next == -INFINITY ? 0.f : next;
                    const float keep = exp2f((maximum - reference) * kLog2e),
                                add = exp2f((state.x - reference) * kLog2e);
                    sum = sum * keep + state.y * add;
                    out.x = out.x * keep + value.x * add;
                    out.y = out.y * keep + value.y * add;
                    maximum = next;
                }
                const float inverse = sum > 0 ? 1.f / sum : 0.f;
                *reinterpret_cast<std::uint32_t*>(outRow + h * kDim + c) = packBf16(out.x * inverse, out.y * inverse);
                if (c == 0 && a.logSums != nullptr) a.logSums[place.firstQueryHead + h] = maximum + logf(sum);
            }
        }
    }
    cluster.sync(); // until here other thread blocks may read this one's shared memory
}

} // namespace kvscope::cuda
