// The choice of blocks: the forced ones, then the best by the query-aware score, then the best of the rest by the
// query-agnostic score.
#pragma once

#include "kernels/cuda/choice/select_plan.cuh"

namespace kvscope::cuda {

/// A set of blocks as bits in shared memory.
template <class Team> struct BlockSet {
    static constexpr int kWords = Team::kBlocks / kWarp, kPerLane = (kWords + kWarp - 1) / kWarp;
    std::uint32_t word[kWords];

    /// Complete after the next barrier.
    __device__ void put(const bool (&in)[Team::kItems]) {
#pragma unroll
        for (int i = 0; i < Team::kItems; ++i) {
            const std::uint32_t votes = __ballot_sync(0xffffffffu, in[i]);
            if (threadIdx.x % kWarp == 0) word[i * Team::kWarps + threadIdx.x / kWarp] = votes;
        }
    }
    __device__ bool has(int block) const { return (word[block / kWarp] >> block % kWarp & 1u) != 0; }
};

/// How many blocks a set has. All lanes of a warp call this.
template <class Team> __device__ int countOf(const BlockSet<Team>& set) {
    int all = 0;
#pragma unroll
    for (int n = 0; n < BlockSet<Team>::kPerLane; ++n) {
        const int w = n * kWarp + int(threadIdx.x) % kWarp;
        all += w < BlockSet<Team>::kWords ? __popc(set.word[w]) : 0;
    }
    return __reduce_add_sync(0xffffffffu, all);
}

/// The words of a set in the lanes of a warp, and how many blocks lie before each.
template <class Team> struct SetPlaces {
    using Set = BlockSet<Team>;
    std::uint32_t word[Set::kPerLane];
    int before[Set::kPerLane], all = 0;

    __device__ explicit SetPlaces(const Set& set) {
        const int lane = threadIdx.x % kWarp;
#pragma unroll
        for (int n = 0; n < Set::kPerLane; ++n) {
            const int w = n * kWarp + lane;
            word[n] = w < Set::kWords ? set.word[w] : 0;
            int through = __popc(word[n]);
            before[n] = all - through;
#pragma unroll
            for (int offset = 1; offset < kWarp && offset < Set::kWords; offset *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, through, offset);
                if (lane >= offset) through += other;
            }
            before[n] += through;
            all += __shfl_sync(0xffffffffu, through, min(kWarp, Set::kWords) - 1);
        }
    }
    /// The number of this thread's i-th block among those of the set, if it is one of them.
    __device__ int ofOwn(int i) const {
        static_assert(kWarp % Team::kWarps == 0);
        const int n = i * Team::kWarps / kWarp, from = i * Team::kWarps % kWarp + int(threadIdx.x) / kWarp;
        const std::uint32_t bits = __shfl_sync(0xffffffffu, word[n], from);
        return __shfl_sync(0xffffffffu, before[n], from) + __popc(bits & ((1u << threadIdx.x % kWarp) - 1u));
    }
    /// The number of a block among those of the set, or -1 if it is not one of them. All lanes call this together, each
    /// with a block of its own.
    __device__ int placeOf(int block) const {
        const int w = block / kWarp, bit = block % kWarp;
        std::uint32_t bits = 0;
        int first = 0;
#pragma unroll
        for (int n = 0; n < Set::kPerLane; ++n) {
            const std::uint32_t of = __shfl_sync(0xffffffffu, word[n], w % kWarp);
            const int at = __shfl_sync(0xffffffffu, before[n], w % kWarp);
            if (w / kWarp == n) bits = of, first = at;
        }
        return (bits >> bit & 1u) != 0 ? first + __popc(bits & ((1u << bit) - 1u)) : -1;
    }
};

/// How many blocks of a set lie before each block of this thread, and how many there are in all.
template <class Team> struct BlocksBefore {
    int before[Team::kItems], all = 0;

    __device__ explicit BlocksBefore(const BlockSet<Team>& set) {
        using Set = BlockSet<Team>;
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        int counts[Set::kPerLane];
#pragma unroll
        for (int n = 0; n < Set::kPerLane; ++n) {
            const int w = n * kWarp + lane;
            counts[n] = w < Set::kWords ? __popc(set.word[w]) : 0;
            all += counts[n];
        }
        all = __reduce_add_sync(0xffffffffu, all);
#pragma unroll
        for (int i = 0; i < Team::kItems; ++i) {
            const int mine = i * Team::kWarps + warp;
            int sum = 0;
#pragma unroll
            for (int n = 0; n < Set::kPerLane; ++n) sum += n * kWarp + lane < mine ? counts[n] : 0;
            before[i] = __reduce_add_sync(0xffffffffu, sum) + __popc(set.word[mine] & ((1u << lane) - 1u));
        }
    }
};

/// Narrows a range to the bin in which the last wanted key lies. The bins of the histogram cover the uppermost `fine`
/// keys of the range, and the last bin also counts all lower keys. Three barriers.
template <class Team>
__device__ void narrow(const std::uint32_t (&keys)[Team::kItems], std::uint32_t fine, KeyRange& range,
                       SelectSmall<Team>& small, BlockCounter<Team::kWarps>& counter) {
    constexpr int kMine = kSelectBins / Team::kThreads;
    fine = min(fine, range.span);
    const std::uint32_t below = range.span - fine;
    const int shift = max(0, 32 - kSelectBinBits - __clz(int(fine)));
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) { // a key of 0 lies outside every range
        const std::uint32_t above = keys[i] - range.low;
        if (above <= range.span) atomicAdd(&small.bins[kSelectBins - 1 - ((max(above, below) - below) >> shift)], 1);
    }
    __syncthreads();
    int mine[kMine], sum = 0, all = 0;
#pragma unroll
    for (int n = 0; n < kMine; ++n) {
        int& bin = small.bins[int(threadIdx.x) * kMine + n];
        sum += mine[n] = bin;
        bin = 0; // for the next histogram
    }
    int better = counter.prefix(sum, all);
    if (better < range.wanted && range.wanted <= better + sum) {
#pragma unroll
        for (int n = 0; n < kMine; ++n) {
            if (better < range.wanted && range.wanted <= better + mine[n]) {
                const auto bin = std::uint32_t(kSelectBins - 1 - (int(threadIdx.x) * kMine + n));
                const std::uint32_t first = bin == 0 ? 0 : below + (bin << shift),
                                    last = below + (bin << shift) + (1u << shift) - 1u;
                small.range = {range.low + first, min(last, range.span) - first, range.wanted - better, mine[n]};
            }
            better += mine[n];
        }
    }
    __syncthreads();
    range = small.range;
}

/// For each of the warp's own candidates: how many of all candidates are better. Every lane holds up to two of all
/// candidates.
template <int kItems>
__device__ void rankAmong(const std::uint64_t (&candidates)[2], const std::uint64_t (&mine)[kItems],
                          int (&better)[kItems]) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        std::uint32_t left = __ballot_sync(0xffffffffu, mine[i] != 0);
        while (left != 0) {
            const int from = __ffs(int(left)) - 1;
            left &= left - 1;
            const std::uint64_t one = __shfl_sync(0xffffffffu, mine[i], from);
            const int count = __popc(__ballot_sync(0xffffffffu, candidates[0] > one)) +
                              __popc(__ballot_sync(0xffffffffu, candidates[1] > one));
            if (int(threadIdx.x % kWarp) == from) better[i] = count;
        }
    }
}

/// Makes the keys of this thread's blocks that a pick may take; 0: the pick may not take the block. The largest and the
/// smallest key of all threads go to highest and lowest, which are complete after the next barrier.
template <class Team>
__device__ void rankFree(const float* scores, const std::uint8_t (&origins)[Team::kItems], int begin, int blocks,
                         std::uint32_t (&keys)[Team::kItems], std::uint32_t& highest, std::uint32_t& lowest) {
    std::uint32_t most = 0, least = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) {
        const int b = Team::blockOf(i);
        keys[i] = b >= begin && b < blocks && origins[i] == kUnchosen ? rankingKey(scores[b]) : 0;
        most = max(most, keys[i]);
        if (keys[i] != 0) least = min(least, keys[i]);
    }
    most = __reduce_max_sync(0xffffffffu, most);
    least = __reduce_min_sync(0xffffffffu, least);
    if (threadIdx.x % kWarp == 0 && most != 0) {
        atomicMax(&highest, most);
        atomicMin(&lowest, least);
    }
}

/// Gives `origin` to the `count` best of the `free` blocks that have keys; count is at least 1. Equal keys: the lower
/// block. turn: which pick this is, 0 or 1.
template <class Team>
__device__ void takeBest(const std::uint32_t (&keys)[Team::kItems], std::uint8_t (&origins)[Team::kItems], int count,
                         int free, Origin origin, int turn, SelectSmall<Team>& small, BlockSet<Team>& ties,
                         BlockCounter<Team::kWarps>& counter) {
    constexpr int kItems = Team::kItems;
    const int lane = threadIdx.x % kWarp;
    const std::uint32_t lowest = small.lowest[turn];
    KeyRange range{lowest, small.highest[turn] - lowest, count, free};
#pragma unroll 1
    for (std::uint32_t fine = kSelectFine; range.wanted < range.inside && range.inside > kSelectClose && range.span > 0;
         fine = 0xffffffffu)
        narrow<Team>(keys, fine, range, small, counter);

    // All blocks above the range are taken. Of a range that is not taken whole the best are taken: a few blocks are
    // compared each with each; many are all equal, and the lower blocks are taken.
    const auto inRange = [&](std::uint32_t key) { return key - range.low <= range.span; };
    int better[kItems] = {};
    if (range.wanted < range.inside && range.inside <= kSelectClose) {
        std::uint64_t mine[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            mine[i] = inRange(keys[i]) ? std::uint64_t(keys[i]) << 32 | ~std::uint32_t(Team::blockOf(i)) : 0;
            if (mine[i] != 0) small.closest[turn][atomicAdd(&small.close[turn], 1)] = mine[i];
        }
        __syncthreads();
        const std::uint64_t candidates[2] = {lane < range.inside ? small.closest[turn][lane] : 0,
                                             lane + kWarp < range.inside ? small.closest[turn][lane + kWarp] : 0};
        rankAmong<kItems>(candidates, mine, better);
    } else if (range.wanted < range.inside) {
        bool equal[kItems];
#pragma unroll
        for (int i = 0; i < kItems; ++i) equal[i] = inRange(keys[i]);
        ties.put(equal);
        __syncthreads();
        const BlocksBefore<Team> before(ties);
#pragma unroll
        for (int i = 0; i < kItems; ++i) better[i] = before.before[i];
        __syncthreads(); // all threads have read `ties`, which may be used again
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i)
        if (keys[i] != 0 && keys[i] >= range.low && (!inRange(keys[i]) || better[i] < range.wanted))
            origins[i] = std::uint8_t(origin);
}

/// Scores that are drawn in place of the method's own (kernels/planted.h).
struct PlantedHead {
    bool planted;
    std::uint32_t head;
    std::uint64_t rate;
    __device__ PlantedHead(const SelectArgs& a, const SelectItem& at)
        : planted(a.planted.share >= 0 || a.planted.streams != nullptr),
          head(std::uint32_t(a.planted.firstHead + at.head)), rate(0) {
        if (a.planted.share >= 0) rate = std::uint64_t(double(a.planted.share) * double(kPlantedWhole));
        if (a.planted.streams == nullptr) return;
        const PlantedStream own = a.planted.streams[at.row];
        head = plantedHead(own.stream, at.item - at.row * a.shape.kvHeads), rate = own.rate;
    }
    __device__ float aware(int block, int position, float score) const {
        return planted ? plantedScore(head, block, position, rate) : score;
    }
    __device__ float agnostic(int block, float score) const { return planted ? plantedPrior(head, block) : score; }
};

/// Which blocks are forced, and how many the scores choose.
struct SelectForced {
    SelectionBudget budget;
    int first, firstWindow, free;

    __device__ SelectForced(const SelectArgs& a, const SelectItem& at) : budget(a.budget), first(at.firstBlock) {
        if (first > 0) { // the sink lies before the sliding window: scores choose as many blocks more
            if (a.score != SelectArgs::Score::None)
                budget.queryAware += budget.sink;
            else if (a.agnostic)
                budget.queryAgnostic += budget.sink;
            budget.sink = 0;
        }
        firstWindow = at.dense ? first : max(first, at.current - budget.window + (budget.windowAddsCurrent ? 0 : 1));
        const int sinks = min(budget.sink, at.blocks);
        free = at.blocks - max(first, sinks) - max(0, at.blocks - max(firstWindow, sinks));
    }
    __device__ int awares() const { return min(budget.queryAware, free); }
    __device__ int agnostics() const { return min(budget.queryAgnostic, free - max(0, awares())); }
    __device__ std::uint8_t originOf(int block) const {
        return block < budget.sink    ? std::uint8_t(Origin::Sink)
               : block >= firstWindow ? std::uint8_t(Origin::Window)
                                      : kUnchosen;
    }
};

/// The origins of this thread's blocks from SelectArgs::chosen.
template <class Team>
__device__ void takeChosen(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                           std::uint8_t (&origins)[Team::kItems]) {
#pragma unroll 1
    for (int b = threadIdx.x; b < at.blocks; b += Team::kThreads) shared.origins[b] = kUnchosen;
    __syncthreads();
    const int given = a.chosen.count[at.item];
#pragma unroll 1
    for (int i = threadIdx.x; i < given; i += Team::kThreads) {
        const std::size_t from = std::size_t(at.item) * a.capacity + i;
        const PackedBlock block = a.chosen.blocks[from];
        const int b = block.id();
        if (b >= at.blocks) continue;
        shared.origins[b] = std::uint8_t(block.origin());
        shared.aware[b] = a.chosen.scores != nullptr ? a.chosen.scores[from] : __uint_as_float(0x7fc00000u);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i)
        origins[i] = Team::blockOf(i) < at.blocks ? shared.origins[Team::blockOf(i)] : kUnchosen;
}

/// Adds the blocks that the scores choose to the forced ones.
template <class Team>
__device__ void chooseBlocks(const SelectItem& at, const SelectForced& forced, const SelectShared& shared,
                             std::uint8_t (&origins)[Team::kItems], SelectSmall<Team>& small, BlockSet<Team>& ties) {
    constexpr int kItems = Team::kItems;
    BlockCounter<Team::kWarps> counter(small.counts);
    const int awares = forced.awares(), agnostics = forced.agnostics();
    std::uint32_t aware[kItems] = {}, agnostic[kItems] = {};
    if (awares > 0)
        rankFree<Team>(shared.aware, origins, forced.first, at.blocks, aware, small.highest[0], small.lowest[0]);
    if (agnostics > 0)
        rankFree<Team>(shared.agnostic, origins, forced.first, at.blocks, agnostic, small.highest[1], small.lowest[1]);
    __syncthreads();
    if (awares > 0) takeBest<Team>(aware, origins, awares, forced.free, Origin::QueryAware, 0, small, ties, counter);
    if (agnostics <= 0) return;
#pragma unroll
    for (int i = 0; i < kItems; ++i)
        if (origins[i] != kUnchosen) agnostic[i] = 0;
    takeBest<Team>(agnostic, origins, agnostics, forced.free - max(0, awares), Origin::QueryAgnostic, 1, small, ties,
                   counter);
}

} // namespace kvscope::cuda
