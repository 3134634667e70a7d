// What thread blocks with even shares of all lists (attention_share.cuh) have in common: a warp that loads reads the
// lists ahead, four warps compute, and what they have accumulated of an item is merged, within a thread block and among
// those that share an item.
#pragma once

#include "kernels/cuda/attention/attention_share.cuh"

namespace kvscope::cuda {

constexpr int kRingWarps = 4; // warps that merge; in attention_ring.cu they compute, and one more warp loads
constexpr int kComputing = kRingWarps * kWarp, kRingThreads = kComputing + kWarp;
constexpr int kMerging = kRingWarps / 2; // so many warps take in the results of as many others

/// Shared memory of a merge.
template <int kDim> struct MergeMemory {
    alignas(16) float values[kMerging][kHeads][kDim]; // results of warps on their way into the merge
    float maxima[kRingWarps][kHeads], sums[kRingWarps][kHeads];
    bool last; // whether this thread block's part of an item has arrived after all others
};

#if __CUDA_ARCH__ >= 900

/// Which stage comes next, and how often it has been used.
template <int kRing> struct RingTurn {
    int stage = 0;
    unsigned round = 0;
    __device__ void advance() {
        if (++stage == kRing) stage = 0, ++round;
    }
};

/// A barrier of the first kRingWarps warps. The warp that loads does not take part.
__device__ inline void joinComputing() { asm volatile("bar.sync 1, %0;" ::"n"(kComputing) : "memory"); }

/// 32 entries of a list, one in each lane.
struct ListedBlocks {
    std::int32_t id = 0, place = 0;
    bool right = false; // whether the entries that were read ahead are the ones that are needed
    __device__ void read(const DecodeAttentionArgs& a, std::size_t at, int entry) {
        id = a.list.block != nullptr ? a.list.block[at] : entry;
        place = a.list.slot != nullptr ? a.list.slot[at] : id;
    }
};

/// Reads the first entries of the share while the lists' lengths are on their way from memory, as if all lists were
/// full, as most are. Called after the wait.
__device__ inline ListedBlocks readAhead(const DecodeAttentionArgs& a, const SharePlan& plan, const Share& full) {
    ListedBlocks blocks;
    if (a.list.count == nullptr || a.list.first != nullptr) return blocks;
    const int item = full.cell / plan.headTiles;
    const int entry = full.first * (kStageTokens >> plan.blockShift) + int(threadIdx.x) % kWarp;
    blocks.read(a, std::size_t(item) * a.list.capacity + min(entry, a.list.capacity - 1), entry);
    blocks.right = true;
    return blocks;
}

/// Brings what the loading warp reads first after the wait into the L2 cache. Called before the wait.
__device__ inline void prefetchShare(const DecodeAttentionArgs& a, const SharePlan& plan, const Share& full, int dim) {
    constexpr int kLine = 128;
    const int lane = threadIdx.x % kWarp, item = full.cell / plan.headTiles;
    const std::size_t listed = std::size_t(item) * a.list.capacity;
    if (lane * kLine < a.list.capacity * 4) {
        if (a.list.block != nullptr) prefetchLine(a.list.block + listed + lane * kLine / 4);
        if (a.list.slot != nullptr) prefetchLine(a.list.slot + listed + lane * kLine / 4);
    }
    if (a.list.count != nullptr && lane * kLine < plan.cells / plan.headTiles * 4)
        prefetchLine(a.list.count + lane * kLine / 4);
    const int heads = a.shape.queryHeads / a.shape.kvHeads; // query heads of a KV head
    for (int at = lane * kLine; at < heads * dim * 2; at += kWarp * kLine)
        prefetchLine(a.q + std::size_t(item) * heads * dim + at / 2);
}

/// A thread's part of a head's result, every 8th piece of 4 channels, and the head's maximum and sum.
template <int kDim> struct HeadPart {
    static constexpr int kPieces = kDim / 32;
    float4 out[kPieces];
    float maximum, sum;

    __device__ void clear() {
        for (float4& piece : out) piece = make_float4(0, 0, 0, 0);
        maximum = -INFINITY, sum = 0;
    }
    __device__ void add(const float4 (&piece)[kPieces], float theirMaximum, float theirSum) {
        const float next = fmaxf(maximum, theirMaximum), reference = next == -INFINITY ? 0.f : next;
        const float keep = exp2f((maximum - reference) * kLog2e), take = exp2f((theirMaximum - reference) * kLog2e);
        sum = sum * keep + theirSum * take;
        maximum = next;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            out[i].x = out[i].x * keep + piece[i].x * take, out[i].y = out[i].y * keep + piece[i].y * take;
            out[i].z = out[i].z * keep + piece[i].z * take, out[i].w = out[i].w * keep + piece[i].w * take;
        }
    }
};

/// Merges what the warps have accumulated of an item and writes the item's result. A thread block that has only a part
/// of the item leaves its part in memory; the last of the item's thread blocks to arrive merges all parts. The first
/// kRingWarps warps call this.
template <int kDim>
__device__ inline void mergeItem(MergeMemory<kDim>& memory, const DecodeAttentionArgs& a, const AttentionItem& item,
                                 const ItemParts& parts, Accumulator<kDim>& acc) {
    constexpr int kPieces = HeadPart<kDim>::kPieces;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    // Half of the warps hand their fragments to the other half, lane by lane.
    auto* fragments = reinterpret_cast<float2*>(memory.values[warp % kMerging]) + lane;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        if (warp < kMerging) continue;
        if (quad == 0) memory.maxima[warp][row + 8 * h] = acc.maximum[h], memory.sums[warp][row + 8 * h] = acc.sum[h];
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
            fragments[(h * kDim / 8 + i) * kWarp] = make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
    }
    joinComputing();
    // Within 32 floats, neighbouring heads' channels are shifted by 8 floats, so that they lie in different banks.
    const auto placeOf = [](int head, int channel) { return channel ^ (head % 4 * 8); };
    if (warp < kMerging) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float theirs = memory.maxima[warp + kMerging][row + 8 * h], next = fmaxf(acc.maximum[h], theirs),
                        reference = next == -INFINITY ? 0.f : next;
            const float keep = exp2f((acc.maximum[h] - reference) * kLog2e),
                        take = exp2f((theirs - reference) * kLog2e);
            acc.sum[h] = acc.sum[h] * keep + memory.sums[warp + kMerging][row + 8 * h] * take;
            acc.maximum[h] = next;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                const float2 other = fragments[(h * kDim / 8 + i) * kWarp];
                acc.out[i][2 * h] = acc.out[i][2 * h] * keep + other.x * take;
                acc.out[i][2 * h + 1] = acc.out[i][2 * h + 1] * keep + other.y * take;
            }
        }
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (quad == 0)
                memory.maxima[warp][row + 8 * h] = acc.maximum[h], memory.sums[warp][row + 8 * h] = acc.sum[h];
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                *reinterpret_cast<float2*>(&memory.values[warp][row + 8 * h][placeOf(row, i * 8 + quad * 2)]) =
                    make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
        }
    }
    joinComputing();
    const int h = int(threadIdx.x) / 8, first = int(threadIdx.x) % 8 * 4; // 4 of every 32 channels of head h
    HeadPart<kDim> mine;
    mine.clear();
#pragma unroll
    for (int w = 0; w < kMerging; ++w) {
        float4 pieces[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            pieces[i] = *reinterpret_cast<const float4*>(&memory.values[w][h][placeOf(h, i * 32 + first)]);
        mine.add(pieces, memory.maxima[w][h], memory.sums[w][h]);
    }
    if (parts.count > 1) {
        float* to = a.scratch.partial + std::size_t(parts.mine) * kPartFloats(kDim);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) *reinterpret_cast<float4*>(to + h * kDim + i * 32 + first) = mine.out[i];
        if (first == 0) *reinterpret_cast<float2*>(to + kHeads * kDim + 2 * h) = make_float2(mine.maximum, mine.sum);
        __threadfence();
        joinComputing();
        if (threadIdx.x == 0) {
            std::uint32_t* arrivals = a.scratch.arrivals + item.cell * kCluster;
            memory.last = atomicAdd(arrivals, 1u) + 1 == unsigned(parts.count);
            if (memory.last) *arrivals = 0;
        }
        joinComputing();
        if (!memory.last) return;
        __threadfence();
        mine.clear();
        constexpr int kAtOnce = 6; // parts whose loads are under way together
        for (int i = 0; i < parts.count; i += kAtOnce) {
            float2 states[kAtOnce];
            float4 pieces[kAtOnce][kPieces];
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) {
                const float* from =
                    a.scratch.partial + std::size_t(parts.at(min(i + u, parts.count - 1))) * kPartFloats(kDim);
                states[u] = __ldcg(reinterpret_cast<const float2*>(from + kHeads * kDim + 2 * h));
                if (i + u >= parts.count) states[u] = make_float2(-INFINITY, 0.f);
#pragma unroll
                for (int p = 0; p < kPieces; ++p)
                    pieces[u][p] = __ldcg(reinterpret_cast<const float4*>(from + h * kDim + p * 32 + first));
            }
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) mine.add(pieces[u], states[u].x, states[u].y);
        }
    } else {
        joinComputing(); // memory.values have been read: the next item's results may take their place
    }
    if (h >= item.heads) return;
    const float inverse = mine.sum > 0 ? 1.f / mine.sum : 0.f;
    Bf16* out = a.out + (item.firstQueryHead + h) * kDim;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
        *reinterpret_cast<uint2*>(out + i * 32 + first) =
            make_uint2(packBf16(mine.out[i].x * inverse, mine.out[i].y * inverse),
                       packBf16(mine.out[i].z * inverse, mine.out[i].w * inverse));
    if (first == 0 && a.logSums != nullptr) a.logSums[item.firstQueryHead + h] = mine.maximum + logf(mine.sum);
}

#endif

} // namespace kvscope::cuda
