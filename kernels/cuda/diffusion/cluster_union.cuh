// Parts of the kernel that unites the pages of a KV head's queries in a cluster of thread blocks: 256 threads have the
// scores of one query in registers and choose the best.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/ranking.cuh"

namespace kvscope::cuda {

constexpr int kUnionBlocks = 8;                         // thread blocks of a cluster
constexpr int kQueryThreads = 256, kQueriesOfBlock = 4; // threads of a query; queries of a thread block at a time
constexpr int kUnionThreads = kQueriesOfBlock * kQueryThreads;
constexpr int kQueryKeys = 18;                          // of a thread: pairs of neighbouring pages
constexpr int kMostUnited = kQueryThreads * kQueryKeys; // pages
constexpr int kMostUnitedWords = kMostUnited / 32;

/// The keys of one query in the registers of kQueryThreads threads, and the choice of the largest. Every function is
/// called by all of these threads.
class QueryKeys {
public:
    static constexpr int kPairs = kQueryThreads / 2, kMostFound = kPairs;
    struct Shared {
        alignas(16) std::uint32_t largest[kPairs]; // of the keys of two threads
        unsigned long long found[kMostFound];      // key, then the complement of the page: the lower page is the larger
        int counts[2][kQueryThreads / kWarp];
        std::uint32_t bound;
        int count;
    };
    __device__ explicit QueryKeys(Shared& shared)
        : shared_(shared), thread_(int(threadIdx.x) % kQueryThreads), slot_(int(threadIdx.x) / kQueryThreads) {}

    /// always: bits of the pages that no query may choose, or null
    __device__ void read(const float* scores, int pages, const std::uint32_t* always) {
        float2 two[kQueryKeys / 2];
#pragma unroll
        for (int u = 0; u < kQueryKeys / 2; ++u) { // the stride of the scores is even
            two[u] = make_float2(0.f, 0.f);
            if (pageOf(2 * u) < pages) two[u] = *reinterpret_cast<const float2*>(scores + pageOf(2 * u));
        }
#pragma unroll
        for (int u = 0; u < kQueryKeys / 2; ++u) {
            const int page = pageOf(2 * u);
            const std::uint32_t word = always != nullptr && page < pages ? always[page / 32] >> (page % 32) : 0u;
            keys_[2 * u] = (word & 1) != 0 || page >= pages ? 0u : rankingKey(two[u].x);
            keys_[2 * u + 1] = (word & 2) != 0 || page + 1 >= pages ? 0u : rankingKey(two[u].y);
        }
    }
    /// Calls take(page), each on some thread, for the `count` largest keys, of equal ones those of the lower pages. A
    /// key of 0 is never taken.
    template <class Take> __device__ void takeLargest(int count, Take&& take) {
        if (!takeFew(count, take)) takeAnyhow(count, take);
    }
    /// Waits for the threads of this query.
    __device__ void join() const { asm volatile("bar.sync %0, %1;" ::"r"(1 + slot_), "n"(kQueryThreads) : "memory"); }

private:
    __device__ int pageOf(int key) const { return 2 * thread_ + key / 2 * (2 * kQueryThreads) + key % 2; }

    /// Of the largest keys of every two threads the one of rank `count` is a bound that at least `count` keys reach,
    /// and hardly more, which are then ranked among each other. @return whether they were few enough
    template <class Take> __device__ bool takeFew(int count, Take&& take) {
        if (count > kPairs / 2) return false;
        std::uint32_t mine = 0;
#pragma unroll
        for (const std::uint32_t key : keys_) mine = max(mine, key);
        const std::uint32_t ofPair = max(mine, __shfl_xor_sync(0xffffffffu, mine, 1));
        if (thread_ % 2 == 0) shared_.largest[thread_ / 2] = ofPair;
        if (thread_ == 0) shared_.bound = 0xffffffffu, shared_.count = 0; // no key is as large
        join();
        int larger = 0; // than the pair's; each of its threads compares half of the others
#pragma unroll
        for (int i = 0; i < kPairs / 2; i += 4) {
            const uint4 others = *reinterpret_cast<const uint4*>(shared_.largest + thread_ % 2 * (kPairs / 2) + i);
            larger += (others.x > ofPair ? 1 : 0) + (others.y > ofPair ? 1 : 0);
            larger += (others.z > ofPair ? 1 : 0) + (others.w > ofPair ? 1 : 0);
        }
        larger += __shfl_xor_sync(0xffffffffu, larger, 1);
        const std::uint32_t least = __reduce_min_sync(0xffffffffu, larger < count ? ofPair : 0xffffffffu);
        if (thread_ % kWarp == 0) atomicMin(&shared_.bound, least);
        join();
        const std::uint32_t bound = shared_.bound;
        if (bound == 0) return false; // a key of 0 is never taken
        if (mine >= bound) {
            int here = 0;
#pragma unroll
            for (const std::uint32_t key : keys_) here += key >= bound ? 1 : 0;
            int at = atomicAdd(&shared_.count, here);
#pragma unroll
            for (int i = 0; i < kQueryKeys; ++i)
                if (keys_[i] >= bound) {
                    if (at < kMostFound)
                        shared_.found[at] = (unsigned long long)(keys_[i]) << 32 | std::uint32_t(~pageOf(i));
                    ++at;
                }
        }
        join();
        const int found = shared_.count;
        if (found > kMostFound) return false; // many are equal
        if (thread_ >= found) return true;
        const unsigned long long own = shared_.found[thread_];
        int before = 0;
        if (found > count)
#pragma unroll 8
            for (int i = 0; i < found; ++i) before += shared_.found[i] > own ? 1 : 0;
        if (before < count) take(int(~std::uint32_t(own)));
        return true;
    }
    /// Finds the last key to be taken, and where many are equal the last page, bit by bit.
    template <class Take> __device__ void takeAnyhow(int count, Take&& take) {
        std::uint32_t last = 0;
        for (int bit = 31; bit >= 0; --bit) {
            const std::uint32_t next = last | 1u << bit;
            if (countOf([&](int i) { return keys_[i] >= next; }) >= count) last = next;
        }
        int lastPage = 0;
        if (last != 0) { // otherwise there are fewer keys than `count`
            const int equal = count - countOf([&](int i) { return keys_[i] > last; }); // so many of them are taken
            for (int bit = 12; bit >= 0; --bit) {
                const int next = lastPage | 1 << bit;
                if (countOf([&](int i) { return keys_[i] == last && pageOf(i) < next; }) < equal) lastPage = next;
            }
        }
#pragma unroll
        for (int i = 0; i < kQueryKeys; ++i)
            if (keys_[i] > last || (keys_[i] == last && last != 0 && pageOf(i) <= lastPage)) take(pageOf(i));
    }
    static_assert(kMostUnited <= 1 << 13);
    /// How many keys of the query satisfy is(i), i counting a thread's.
    template <class Is> __device__ int countOf(Is&& is) {
        int here = 0;
#pragma unroll
        for (int i = 0; i < kQueryKeys; ++i) here += is(i) ? 1 : 0;
        here = __reduce_add_sync(0xffffffffu, here);
        turn_ ^= 1;
        if (thread_ % kWarp == 0) shared_.counts[turn_][thread_ / kWarp] = here;
        join();
        int all = 0;
#pragma unroll
        for (const int ofWarp : shared_.counts[turn_]) all += ofWarp;
        return all;
    }

    Shared& shared_;
    const int thread_, slot_;
    int turn_ = 0;
    std::uint32_t keys_[kQueryKeys];
};

} // namespace kvscope::cuda
