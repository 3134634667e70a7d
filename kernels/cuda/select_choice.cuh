// The choice itself: forced blocks, then the best by the one score, then the best of the rest by the other. A thread
// holds kItems neighbouring blocks.
#pragma once

#include "kernels/cuda/select_plan.cuh"

namespace kvscope::cuda {

using SelectCounter = BlockCounter<kSelectWarps>;

/// How many keys of the thread block reach three thresholds, `step` apart; a call is one barrier. turn alternates.
template <int kItems>
__device__ int3 countReaching(const std::uint32_t (&keys)[kItems], std::uint32_t first, std::uint32_t step,
                              SelectSmall& small, int& turn) {
    turn ^= 1;
    const std::uint32_t second = first + step, third = second + step;
    uint2 mine = make_uint2(0, 0); // two counts of 16 bits, and one
    if constexpr (kItems <= 2) {   // votes are quicker than sums
        const auto reaching = [](std::uint32_t key, std::uint32_t threshold) {
            return unsigned(__popc(__ballot_sync(0xffffffffu, key >= threshold)));
        };
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            mine.x += reaching(keys[i], first) + (reaching(keys[i], second) << 16);
            mine.y += reaching(keys[i], third);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            mine.x += (keys[i] >= first ? 1u : 0u) + (keys[i] >= second ? 0x10000u : 0u);
            mine.y += keys[i] >= third ? 1u : 0u;
        }
        mine.x = __reduce_add_sync(0xffffffffu, mine.x);
        mine.y = __reduce_add_sync(0xffffffffu, mine.y);
    }
    if (threadIdx.x % kWarp == 0) reinterpret_cast<uint2*>(small.rounds[turn])[threadIdx.x / kWarp] = mine;
    __syncthreads();
    uint2 total = make_uint2(0, 0);
#pragma unroll
    for (int pair = 0; pair < kSelectWarps / 2; ++pair) {
        const uint4 two = small.rounds[turn][pair];
        total.x += two.x + two.z;
        total.y += two.y + two.w;
    }
    return make_int3(int(total.x & 0xffff), int(total.x >> 16), int(total.y));
}

/// Marks the `count` best unchosen blocks from `begin` on by score with `origin`; equal scores: the lower block. free:
/// how many are unchosen. Searches the threshold two bits at a time, from the first in which scores differ until it
/// separates exactly; a step costs a barrier.
template <int kItems>
__device__ void takeBest(const float* scores, std::uint8_t (&origins)[kItems], int begin, int blocks, int count,
                         int free, Origin origin, SelectSmall& small, SelectCounter& counter, int& turn) {
    count = min(count, free);
    if (count <= 0) return;
    std::uint32_t keys[kItems], highest = 0, lowest = 0xffffffffu; // 0: not free
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = int(threadIdx.x) * kItems + i;
        keys[i] = b >= begin && b < blocks && origins[i] == kUnchosen ? rankingKey(scores[b]) : 0;
        highest = max(highest, keys[i]);
        if (keys[i] != 0) lowest = min(lowest, keys[i]);
    }
    std::uint32_t threshold = 0;
    bool exact = count == free; // all of them: any threshold does
    if (exact) threshold = 1;
    if (!exact) {
        highest = __reduce_max_sync(0xffffffffu, highest);
        lowest = __reduce_min_sync(0xffffffffu, lowest);
        if (threadIdx.x % kWarp == 0) small.extremes[threadIdx.x / kWarp] = make_uint2(highest, lowest);
        __syncthreads();
#pragma unroll
        for (int w = 0; w < kSelectWarps; ++w) {
            highest = max(highest, small.extremes[w].x);
            lowest = min(lowest, small.extremes[w].y);
        }
        const int differs = 31 - __clz(int(highest ^ lowest)) | 1; // an odd bit; all equal: -1
        threshold = differs < 0 ? highest : highest & ~((2u << differs) - 1u);
        for (int bit = differs - 1; bit >= 0 && !exact; bit -= 2) {
            const std::uint32_t step = 1u << bit, first = threshold + step;
            const int3 reach = countReaching<kItems>(keys, first, step, small, turn);
            const int total = reach.z >= count ? reach.z : reach.y >= count ? reach.y : reach.x;
            threshold = reach.z >= count   ? first + 2 * step
                        : reach.y >= count ? first + step
                        : reach.x >= count ? first
                                           : threshold;
            exact = total == count;
        }
    }
    // Everything above the threshold, then of the equal ones the lowest blocks.
    int ties = 0x7fffffff, before = 0;
    if (!exact) {
        int above = 0, equal = 0, total = 0;
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            above += keys[i] > threshold ? 1 : 0;
            equal += keys[i] == threshold ? 1 : 0;
        }
        ties = count - counter.sum(above);
        before = counter.prefix(equal, total);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        if (keys[i] == 0 || keys[i] < threshold) continue;
        if (exact || keys[i] > threshold || before++ < ties) origins[i] = std::uint8_t(origin);
    }
}

__device__ inline std::uint32_t hashOf(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    std::uint32_t x = a * 0x9E3779B1u ^ b * 0x85EBCA77u ^ c * 0xC2B2AE3Du;
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    x = (x ^ x >> 12) * 0x297A2D39u;
    return x ^ x >> 15;
}

/// Scores for benchmarks: every block draws anew once in 1/planted steps, each at its own time.
__device__ inline void plantScores(const SelectArgs& a, const SelectItem& at, const SelectShared& shared) {
    for (int b = threadIdx.x; b < at.blocks; b += kSelectThreads) {
        const auto drawn = [&](std::uint32_t salt) {
            return float(hashOf(std::uint32_t(at.head), std::uint32_t(b), salt)) * 0x1p-32f;
        };
        shared.aware[b] = drawn(2 + std::uint32_t(float(at.position) * a.planted + drawn(0)));
        if (a.agnostic) shared.agnostic[b] = drawn(1);
    }
    __syncthreads();
}

/// Origins of this thread's blocks; kUnchosen: not selected.
template <int kItems>
__device__ void chooseBlocks(const SelectArgs& a, const SelectItem& at, const SelectShared& shared,
                             std::uint8_t (&mine)[kItems], SelectSmall& small, SelectCounter& counter) {
    const int firstMine = int(threadIdx.x) * kItems, blocks = at.blocks;
    if (a.chosen != nullptr && !at.dense) { // the choice was made elsewhere
        for (int b = threadIdx.x; b < blocks; b += kSelectThreads) shared.origins[b] = kUnchosen;
        __syncthreads();
        const int given = a.chosenCount[at.item];
        for (int i = threadIdx.x; i < given; i += kSelectThreads) {
            const std::size_t from = std::size_t(at.item) * a.capacity + i;
            const int b = int(a.chosen[from] & 0xffffff);
            if (b >= blocks) continue;
            shared.origins[b] = std::uint8_t(a.chosen[from] >> kOriginShift & 7);
            shared.aware[b] = a.chosenScores != nullptr ? a.chosenScores[from] : __uint_as_float(0x7fc00000u);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kItems; ++i) mine[i] = firstMine + i < blocks ? shared.origins[firstMine + i] : kUnchosen;
        return;
    }
    SelectionBudget budget = a.budget;
    const int first = at.firstBlock;
    if (first > 0) { // the sink has left the sliding window: its share goes to the method's choice
        if (a.score != SelectArgs::Score::None)
            budget.queryAware += budget.sink;
        else if (a.agnostic)
            budget.queryAgnostic += budget.sink;
        budget.sink = 0;
    }
    const int firstWindow = max(first, at.current - budget.window + (budget.windowAddsCurrent ? 0 : 1));
    const int sinks = min(budget.sink, blocks),
              forced = at.dense ? blocks - first : sinks + max(0, blocks - max(firstWindow, sinks));
    const int free = blocks - first - forced;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int b = firstMine + i;
        mine[i] = b < budget.sink                                ? std::uint8_t(Origin::Sink)
                  : b >= firstWindow || (at.dense && b >= first) ? std::uint8_t(Origin::Window)
                                                                 : kUnchosen;
    }
    int turn = 0;
    takeBest<kItems>(shared.aware, mine, first, blocks, budget.queryAware, free, Origin::QueryAware, small, counter,
                     turn);
    const int taken = max(0, min(budget.queryAware, free));
    takeBest<kItems>(shared.agnostic, mine, first, blocks, budget.queryAgnostic, free - taken, Origin::QueryAgnostic,
                     small, counter, turn);
}

} // namespace kvscope::cuda
