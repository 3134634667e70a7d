// The best of many scores inside one thread block: the scores become ordered keys in shared memory, and the last key to
// be taken is found two bits at a time.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

/// A score's key, an unsigned number: a larger score has a larger key, NaN has that of -inf. A key is never 0, which
/// marks what may not be taken.
__device__ inline std::uint32_t rankingKey(float score) {
    if (isnan(score)) score = -INFINITY;
    const std::uint32_t bits = __float_as_uint(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// Sums and prefix sums over a thread block of kWarps warps. Every call has one barrier.
template <int kWarps> class BlockCounter {
public:
    struct Shared {
        int counts[2][kWarps];
        std::uint32_t pairs[2][kWarps][2];
    };
    __device__ explicit BlockCounter(Shared& shared) : shared_(shared) {}

    __device__ int sum(int value) {
        turn_ ^= 1;
        const int warpTotal = __reduce_add_sync(0xffffffffu, value);
        if (threadIdx.x % kWarp == 0) shared_.counts[turn_][threadIdx.x / kWarp] = warpTotal;
        __syncthreads();
        int total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total += shared_.counts[turn_][w];
        return total;
    }
    /// Two sums with one barrier.
    __device__ uint2 sums(std::uint32_t value, std::uint32_t other) {
        turn_ ^= 1;
        const std::uint32_t warpTotal = __reduce_add_sync(0xffffffffu, value),
                            otherTotal = __reduce_add_sync(0xffffffffu, other);
        if (threadIdx.x % kWarp == 0) {
            shared_.pairs[turn_][threadIdx.x / kWarp][0] = warpTotal;
            shared_.pairs[turn_][threadIdx.x / kWarp][1] = otherTotal;
        }
        __syncthreads();
        uint2 total = make_uint2(0, 0);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            total.x += shared_.pairs[turn_][w][0];
            total.y += shared_.pairs[turn_][w][1];
        }
        return total;
    }
    /// Sum of the values of the threads before this one; `total`: of all.
    __device__ int prefix(int value, int& total) {
        turn_ ^= 1;
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        int inclusive = value;
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, inclusive, offset);
            if (lane >= offset) inclusive += other;
        }
        if (lane == kWarp - 1) shared_.counts[turn_][warp] = inclusive;
        __syncthreads();
        int before = inclusive - value;
        total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const int count = shared_.counts[turn_][w];
            if (w < warp) before += count;
            total += count;
        }
        return before;
    }

private:
    Shared& shared_;
    int turn_ = 0;
};

/// Calls take(i), each on some thread, for the `count` largest of keys[0, n) in shared memory, n < 65536. A key of 0 is
/// never taken. Of equal keys the lower indices are taken, with kHigher the higher ones. All threads of the thread
/// block call this, after a barrier since the keys were written.
template <int kWarps, bool kHigher = false, class Take>
__device__ void takeLargest(const std::uint32_t* keys, int n, int count, BlockCounter<kWarps>& counter, Take&& take) {
    constexpr int kThreads = kWarps * kWarp;
    if (count <= 0) return;
    std::uint32_t threshold = 0;
    bool exact = false;
    for (int bit = 30; bit >= 0 && !exact; bit -= 2) { // two bits a turn: the turns' barriers take most of the time
        const std::uint32_t step = 1u << bit, first = threshold + step, second = first + step, third = second + step;
        std::uint32_t lower = 0, highest = 0; // lower: two counts of 16 bits
        for (int i = threadIdx.x; i < n; i += kThreads) {
            const std::uint32_t key = keys[i];
            lower += (key >= first ? 1u : 0u) + (key >= second ? 0x10000u : 0u);
            highest += key >= third ? 1u : 0u;
        }
        const uint2 totals = counter.sums(lower, highest);
        const int atFirst = int(totals.x & 0xffff), atSecond = int(totals.x >> 16), atThird = int(totals.y);
        const int total = atThird >= count ? atThird : atSecond >= count ? atSecond : atFirst;
        threshold = atThird >= count ? third : atSecond >= count ? second : atFirst >= count ? first : threshold;
        exact = total == count;
    }
    if (exact) {
        for (int i = threadIdx.x; i < n; i += kThreads)
            if (keys[i] >= threshold) take(i);
        return;
    }
    // Takes everything above the threshold, then equal keys by their index. A threshold of 0 says that there are fewer
    // keys than `count`: all are taken.
    const int perThread = (n + kThreads - 1) / kThreads, begin = min(int(threadIdx.x) * perThread, n),
              end = min(begin + perThread, n);
    int above = 0, equal = 0;
    for (int i = begin; i < end; ++i) {
        above += keys[i] > threshold ? 1 : 0;
        equal += keys[i] == threshold && threshold != 0 ? 1 : 0;
    }
    int allEqual = 0;
    const int ties = count - counter.sum(above);
    const int before = counter.prefix(equal, allEqual);
    int first = 0, last = ties; // of the equal ones
    if constexpr (kHigher) first = allEqual - ties, last = allEqual;
    int at = before;
    for (int i = begin; i < end; ++i) {
        const std::uint32_t key = keys[i];
        if (key == 0) continue;
        if (key > threshold)
            take(i);
        else if (key == threshold) {
            if (at >= first && at < last) take(i);
            ++at;
        }
    }
}

} // namespace kvscope::cuda
