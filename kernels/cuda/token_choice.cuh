// The best of a list of scores whose parts lie with the thread blocks of a cluster; see token_choice.h.
#pragma once

#include "kernels/cuda/common.cuh"

namespace kvscope::cuda {

constexpr int kChoiceThreads = 512, kChoiceWarps = kChoiceThreads / kWarp, kChoiceCluster = 8;
constexpr int kChoiceBins = 2048; // a rank's 32 bits fall in digits of 11, 11 and 10

/// Ascends with the score; NaN counts as -inf, zeros of both signs are equal.
__device__ inline std::uint32_t rankOf(float score) {
    if (score != score) score = -INFINITY;
    const std::uint32_t bits = score == 0.f ? 0u : __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float scoreOf(std::uint32_t rank) {
    return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

struct ChoiceShared {
    alignas(16) std::uint32_t bins[kChoiceBins];
    std::uint32_t warpCount[kChoiceWarps], warpBetter[kChoiceWarps], warpEqual[kChoiceWarps];
    std::uint32_t bin, above;    // what a digit's histogram says
    std::uint32_t better, equal; // entries of this block's part
};

/// Entries [begin, end) of a list: the part of one thread block.
struct ListPart {
    int begin, end;
    __device__ ListPart(int length, int ranks, int rank) {
        const int share = ((length + ranks - 1) / ranks + kWarp - 1) / kWarp * kWarp;
        begin = min(length, rank * share), end = min(length, begin + share);
    }
    __device__ int size() const { return end - begin; }
};

/// Chosen are all entries of a higher rank, and of those of equal rank the first `equals`.
struct Threshold {
    std::uint32_t rank, equals;
};

__device__ inline std::uint32_t warpTotal(std::uint32_t value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/// All threads of the cluster call it. rankAt(i): of entry i of this block's part, i < count. all: entries of the list.
template <class RankAt>
__device__ Threshold findThreshold(ChoiceShared& s, int count, int all, int wanted, RankAt&& rankAt) {
    if (wanted >= all) return {0, std::uint32_t(all)};
    if (wanted <= 0) return {0xffffffffu, 0};
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    std::uint32_t digits = 0, above = 0; // leading digits of the threshold, entries above them
    for (const int shift : {21, 10, 0}) {
        const int bits = shift == 0 ? 10 : 11;
        for (int i = threadIdx.x; i < kChoiceBins; i += kChoiceThreads) s.bins[i] = 0;
        __syncthreads();
        for (int base = 0; base < count; base += kChoiceThreads) {
            const int i = base + int(threadIdx.x);
            const std::uint32_t rank = i < count ? rankAt(i) : 0;
            const bool counts = i < count && (shift == 21 || rank >> (shift + bits) == digits);
            const std::uint32_t bin = rank >> shift & ((1u << bits) - 1);
            // Often a whole warp has one bin, where scores have underflown for example: one addition is enough.
            const unsigned counting = __ballot_sync(0xffffffffu, counts);
            if (counting == 0) continue;
            const int leader = __ffs(int(counting)) - 1;
            const std::uint32_t first = __shfl_sync(0xffffffffu, bin, leader);
            if (__ballot_sync(0xffffffffu, counts && bin == first) == counting) {
                if (lane == leader) atomicAdd(&s.bins[first], std::uint32_t(__popc(counting)));
            } else if (counts) {
                atomicAdd(&s.bins[bin], 1u);
            }
        }
        cluster.sync();
        // Thread t has four bins of the whole cluster, counted from the highest.
        constexpr int kMine = kChoiceBins / kChoiceThreads;
        const int highest = kChoiceBins - 1 - kMine * int(threadIdx.x);
        std::uint32_t mine[kMine] = {}, sum = 0;
        static_assert(kMine == 4);
        uint4 theirs[kChoiceCluster]; // all loads under way before the first is used
#pragma unroll
        for (int r = 0; r < kChoiceCluster; ++r) {
            theirs[r] = make_uint4(0, 0, 0, 0);
            if (r < ranks)
                theirs[r] = *reinterpret_cast<const uint4*>(&cluster.map_shared_rank(&s, r)->bins[highest - 3]);
        }
#pragma unroll
        for (int r = 0; r < kChoiceCluster; ++r)
            mine[0] += theirs[r].w, mine[1] += theirs[r].z, mine[2] += theirs[r].y, mine[3] += theirs[r].x;
#pragma unroll
        for (int j = 0; j < kMine; ++j) sum += mine[j];
        std::uint32_t through = sum; // of the warp's lanes up to this one
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
            const std::uint32_t other = __shfl_up_sync(0xffffffffu, through, offset);
            if (lane >= offset) through += other;
        }
        if (lane == kWarp - 1) s.warpCount[warp] = through;
        __syncthreads();
        std::uint32_t before = above + through - sum;
        for (int w = 0; w < warp; ++w) before += s.warpCount[w];
#pragma unroll
        for (int j = 0; j < kMine; ++j) {
            if (before < std::uint32_t(wanted) && before + mine[j] >= std::uint32_t(wanted))
                s.bin = std::uint32_t(highest - j), s.above = before;
            before += mine[j];
        }
        cluster.sync(); // the bins were read everywhere
        digits = shift == 21 ? s.bin : digits << bits | s.bin;
        above = s.above;
    }
    return {digits, std::uint32_t(wanted) - above};
}

/// Calls take(place, i) for every chosen entry of this block's part; places are those of the whole list, in order.
template <class RankAt, class Take>
__device__ void takeChosen(ChoiceShared& s, int count, Threshold threshold, RankAt&& rankAt, Take&& take) {
    const auto cluster = thisCluster();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int segment = (count + kChoiceThreads - 1) / kChoiceThreads * kWarp; // entries of a warp
    const int begin = min(count, warp * segment), end = min(count, begin + segment);
    std::uint32_t better = 0, equal = 0;
    for (int i = begin + lane; i < end; i += kWarp) {
        const std::uint32_t rank = rankAt(i);
        better += rank > threshold.rank ? 1 : 0;
        equal += rank == threshold.rank ? 1 : 0;
    }
    better = warpTotal(better), equal = warpTotal(equal);
    if (lane == 0) s.warpBetter[warp] = better, s.warpEqual[warp] = equal;
    __syncthreads();
    if (threadIdx.x == 0) {
        s.better = s.equal = 0;
        for (int w = 0; w < kChoiceWarps; ++w) s.better += s.warpBetter[w], s.equal += s.warpEqual[w];
    }
    cluster.sync();
    better = equal = 0; // before this warp's segment
    for (int r = 0; r < int(cluster.block_rank()); ++r) {
        const ChoiceShared* other = cluster.map_shared_rank(&s, r);
        better += other->better, equal += other->equal;
    }
    for (int w = 0; w < warp; ++w) better += s.warpBetter[w], equal += s.warpEqual[w];
    const unsigned lower = (1u << lane) - 1;
    for (int base = begin; base < end; base += kWarp) {
        const int i = base + lane;
        const std::uint32_t rank = i < end ? rankAt(i) : 0;
        const bool isBetter = i < end && rank > threshold.rank, isEqual = i < end && rank == threshold.rank;
        const unsigned betters = __ballot_sync(0xffffffffu, isBetter), equals = __ballot_sync(0xffffffffu, isEqual);
        const std::uint32_t b = better + __popc(betters & lower), e = equal + __popc(equals & lower);
        if (isBetter || (isEqual && e < threshold.equals)) take(int(b + min(e, threshold.equals)), i);
        better += __popc(betters), equal += __popc(equals);
    }
    cluster.sync(); // others may still read this block's counts
}

/// How many thread blocks share a list of maxLength scores when there are `lists` of them.
inline unsigned choiceRanks(const Launch& how, int lists, int maxLength) {
    unsigned ranks = 1;
    while (how.clusters && ranks < kChoiceCluster && maxLength > int(ranks) * 2048 &&
           lists * int(ranks) < how.multiprocessors * 4)
        ranks *= 2;
    return ranks;
}
constexpr std::size_t kChoicePart = 48 << 10; // most scores of a part that stay in shared memory

} // namespace kvscope::cuda
