// The best of a list of scores whose parts lie in the shared memory of the thread blocks of a cluster; see
// token_choice.h.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

constexpr int kChoiceThreads = 512, kChoiceWarps = kChoiceThreads / kWarp, kChoiceCluster = 8;
constexpr int kChoiceBins = 2048; // a rank's 32 bits fall in digits of 11, 11 and 10

/// A number that ascends with the score. NaN counts as -inf, zeros of both signs are equal.
__device__ inline std::uint32_t rankOf(float score) {
    if (score != score) score = -INFINITY;
    const std::uint32_t bits = score == 0.f ? 0u : __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float scoreOf(std::uint32_t rank) {
    return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

/// Shared memory of a thread block for findThreshold.
template <int kThreads> struct ThresholdShared {
    alignas(16) std::uint32_t bins[2][kChoiceBins]; // used in turns: others may still read one while the next is filled
    std::uint32_t sums[2][kChoiceCluster][kChoiceBins / kWarp]; // of every thread block's bins, 32 at a time
    std::uint32_t bin, above, inBin;                            // the threshold's bin; entries above it and in it
};

struct ChoiceShared : ThresholdShared<kChoiceThreads> {
    std::uint32_t warpBetter[kChoiceWarps], warpEqual[kChoiceWarps];
    std::uint32_t better, equal; // entries of this thread block's part
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

/// All entries of a higher rank are chosen, and the first `equals` entries of this rank.
struct Threshold {
    std::uint32_t rank, equals;
};

__device__ inline std::uint32_t warpTotal(std::uint32_t value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/// The sum of what the lanes before this one have.
__device__ inline std::uint32_t lanesBefore(std::uint32_t value) {
    std::uint32_t through = value;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint32_t other = __shfl_up_sync(0xffffffffu, through, offset);
        if (int(threadIdx.x % kWarp) >= offset) through += other;
    }
    return through - value;
}

/// Finds the rank of the last chosen entry of a list. All threads of the cluster call this, after all thread blocks of
/// the cluster have started. rankAt(i) is the rank of entry i of this thread block's part, i < count; `all` is the
/// number of entries of the whole list. Other thread blocks may still read `s` when the call returns, so that the
/// cluster must synchronise before another call.
template <int kThreads, class RankAt>
__device__ Threshold findThreshold(ThresholdShared<kThreads>& s, int count, int all, int wanted, RankAt&& rankAt) {
    if (wanted >= all) return {0, std::uint32_t(all)};
    if (wanted <= 0) return {0xffffffffu, 0};
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank()), lane = threadIdx.x % kWarp,
              warp = threadIdx.x / kWarp;
    std::uint32_t digits = 0, above = 0; // leading digits of the threshold, and how many entries lie above them
    int turn = 0;
    for (const int shift : {21, 10, 0}) {
        const int bits = shift == 0 ? 10 : 11;
        turn ^= 1;
        std::uint32_t* bins = s.bins[turn];
        for (int i = threadIdx.x; i < kChoiceBins; i += kThreads) bins[i] = 0;
        __syncthreads();
        for (int base = 0; base < count; base += kThreads) {
            const int i = base + int(threadIdx.x);
            const std::uint32_t key = i < count ? rankAt(i) : 0;
            const bool counts = i < count && (shift == 21 || key >> (shift + bits) == digits);
            const std::uint32_t bin = key >> shift & ((1u << bits) - 1);
            // The entries of a warp are often all in one bin, for example where scores have underflown: then one lane
            // adds them all.
            const unsigned counting = __ballot_sync(0xffffffffu, counts);
            if (counting == 0) continue;
            const int leader = __ffs(int(counting)) - 1;
            const std::uint32_t first = __shfl_sync(0xffffffffu, bin, leader);
            if (__ballot_sync(0xffffffffu, counts && bin == first) == counting) {
                if (lane == leader) atomicAdd(&bins[first], std::uint32_t(__popc(counting)));
            } else if (counts) {
                atomicAdd(&bins[bin], 1u);
            }
        }
        __syncthreads();
        // To keep the exchange small, thread blocks send each other sums over 32 bins, and read only the 32 bins in
        // which the threshold lies.
        constexpr int kMine = kChoiceBins / kThreads, kSharing = kWarp / kMine; // bins of a thread, threads of a sum
        static_assert(kMine % 4 == 0 && kMine <= kWarp);
        std::uint32_t sum = 0;
#pragma unroll
        for (int j = 0; j < kMine; j += 4) {
            const uint4 four = *reinterpret_cast<const uint4*>(bins + kMine * threadIdx.x + j);
            sum += four.x + four.y + four.z + four.w;
        }
#pragma unroll
        for (int offset = 1; offset < kSharing; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        for (int r = int(threadIdx.x) % kSharing; r < ranks; r += kSharing)
            *cluster.map_shared_rank(&s.sums[turn][rank][threadIdx.x / kSharing], r) = sum;
        cluster.sync(); // after this nobody reads the bins and sums of the turn before
        if (warp == 0) {
            // Lane l takes the sums number 2l and 2l + 1, counted from the highest bins.
            constexpr int kSums = kChoiceBins / kWarp;
            static_assert(kSums == 2 * kWarp);
            const int high = kSums - 1 - 2 * lane;
            std::uint32_t first = 0, second = 0;
            for (int r = 0; r < ranks; ++r) first += s.sums[turn][r][high], second += s.sums[turn][r][high - 1];
            std::uint32_t before = above + lanesBefore(first + second);
            const auto has = [&](std::uint32_t count) {
                return before < std::uint32_t(wanted) && before + count >= std::uint32_t(wanted);
            };
            const bool inFirst = has(first);
            if (!inFirst) before += first;
            const unsigned found = __ballot_sync(0xffffffffu, inFirst || has(second));
            const int finder = __ffs(int(found)) - 1;
            const int group = __shfl_sync(0xffffffffu, inFirst ? high : high - 1, finder);
            before = __shfl_sync(0xffffffffu, before, finder);
            const int bin = group * kWarp + kWarp - 1 - lane;
            std::uint32_t theirs[kChoiceCluster], mine = 0; // all loads are asked for before the first is used
#pragma unroll
            for (int r = 0; r < kChoiceCluster; ++r) theirs[r] = r < ranks ? cluster.map_shared_rank(bins, r)[bin] : 0;
#pragma unroll
            for (int r = 0; r < kChoiceCluster; ++r) mine += theirs[r];
            before += lanesBefore(mine);
            if (has(mine)) s.bin = std::uint32_t(bin), s.above = before, s.inBin = mine;
        }
        __syncthreads();
        digits = shift == 21 ? s.bin : digits << bits | s.bin;
        above = s.above;
        // The whole bin is chosen, with all entries above it. digits is not 0: else all entries would be wanted.
        if (above + s.inBin == std::uint32_t(wanted)) return {(digits << shift) - 1, 0};
    }
    return {digits, std::uint32_t(wanted) - above};
}

/// Calls take(place, i) for every chosen entry i of this thread block's part. Places count the chosen entries of the
/// whole list, in the list's order.
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
    better = equal = 0; // from here on: entries before this warp's segment
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
    cluster.sync(); // until here other thread blocks may read this one's counts
}

/// How many thread blocks share a list of maxLength scores when there are `lists` of them.
inline unsigned choiceRanks(const Launch& how, int lists, int maxLength) {
    unsigned ranks = 1;
    while (how.clusters && ranks < kChoiceCluster && maxLength > int(ranks) * 2048 &&
           lists * int(ranks) < how.multiprocessors * 4)
        ranks *= 2;
    return ranks;
}
constexpr std::size_t kChoicePart = 46 << 10; // most scores of a part that stay in shared memory

} // namespace kvscope::cuda
