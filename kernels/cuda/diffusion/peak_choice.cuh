// Parts of the kernel that unites the pages of a KV head's queries: a warp chooses the best pages of one query by the
// largest key of every kPeakPages pages, and reads the scores of few of them.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/ranking.cuh"

namespace kvscope::cuda {

constexpr int kPeakPages = 16;     // pages that have a peak: the largest key of their scores
constexpr int kMostPeakCount = 16; // pages that a query chooses by peaks; with more, reading their scores takes longer

/// The choice of one query's pages by one warp. Every function is called by all of its lanes.
class PeakChoice {
public:
    static constexpr int kOfLane = 16, kMostKeys = kOfLane * kWarp; // keys in registers
    static constexpr int kMostPages = kMostKeys * kPeakPages;
    struct Shared {
        unsigned long long found[96]; // key, then the complement of the page: the lower page is the larger
        std::uint16_t groups[48];
    };
    /// scores: 16-byte aligned; peaks: keys, behind them; always: bits of the pages that no query may choose, or null
    __device__ PeakChoice(Shared& shared, const float* scores, const float* peaks, int pages,
                          const std::uint32_t* always)
        : shared_(shared), scores_(scores), always_(always), pages_(pages), lane_(int(threadIdx.x) % kWarp),
          byPage_(pages <= kMostKeys) {
        const int keys = byPage_ ? pages : (pages + kPeakPages - 1) / kPeakPages;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) {
            const int i = lane_ + j * kWarp;
            mine_[j] = i >= keys ? 0u : __float_as_uint(byPage_ ? scores[i] : peaks[i]);
        }
        if (byPage_)
#pragma unroll
            for (int j = 0; j < kOfLane; ++j)
                mine_[j] = lane_ + j * kWarp < keys ? keyOf(lane_ + j * kWarp, __uint_as_float(mine_[j])) : 0u;
    }
    /// Calls take(page), each on some lane, for the `count` largest keys, of equal ones those of the lower pages. A key
    /// of 0 is never taken.
    template <class Take> __device__ void takeLargest(int count, Take&& take) {
        if (!takeFew(count, take)) takeAnyhow(count, take);
    }

private:
    static constexpr int kMostFound = int(sizeof(Shared::found) / sizeof(unsigned long long)),
                         kMostGroups = int(sizeof(Shared::groups) / sizeof(std::uint16_t));

    __device__ std::uint32_t keyOf(int page, float score) const {
        return always_ != nullptr && (always_[page / 32] >> (page % 32) & 1) != 0 ? 0u : rankingKey(score);
    }
    /// How many keys reach the bound, which is not 0.
    __device__ int countOf(std::uint32_t bound) const {
        int here = 0;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) here += mine_[j] >= bound ? 1 : 0;
        return __reduce_add_sync(0xffffffffu, here);
    }
    /// The place of this lane's first of `here` things among those of all lanes. all: how many these are
    __device__ int placeOf(int here, int& all) const {
        int upTo = here;
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, upTo, offset);
            if (lane_ >= offset) upTo += before;
        }
        all = __shfl_sync(0xffffffffu, upTo, kWarp - 1);
        return upTo - here;
    }
    __device__ void keep(int& at, std::uint32_t key, int page) const {
        if (at < kMostFound) shared_.found[at] = (unsigned long long)(key) << 32 | std::uint32_t(~page);
        ++at;
    }

    template <class Take> __device__ bool takeFew(int count, Take&& take) {
        std::uint32_t least = 0xffffffffu, most = 0;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) {
            most = max(most, mine_[j]);
            least = min(least, mine_[j] - 1); // a key of 0 is no key
        }
        most = __reduce_max_sync(0xffffffffu, most);
        least = __reduce_min_sync(0xffffffffu, least) + 1;
        if (most == 0) return true; // nothing may be taken
        std::uint32_t high = most + 1;
        int at = countOf(least); // that reach `least`
        if (at < count && !byPage_) return false;
        for (const int enough = count + count / 8; at > enough && high - least > 1;) {
            const std::uint32_t middle = least + (high - least) / 2;
            const int here = countOf(middle);
            if (here >= count)
                least = middle, at = here;
            else
                high = middle;
        }
        if (at > (byPage_ ? kMostFound : kMostGroups)) return false; // many are equal
        int here = 0, found = 0;
#pragma unroll
        for (int j = 0; j < kOfLane; ++j) here += mine_[j] >= least ? 1 : 0;
        int place = placeOf(here, found);
        __syncwarp(); // the query before has been read
        if (byPage_) {
#pragma unroll
            for (int j = 0; j < kOfLane; ++j)
                if (mine_[j] >= least) keep(place, mine_[j], lane_ + j * kWarp);
        } else {
#pragma unroll
            for (int j = 0; j < kOfLane; ++j)
                if (mine_[j] >= least) shared_.groups[place++] = std::uint16_t(lane_ + j * kWarp);
            __syncwarp();
            found = readGroups(found, least);
        }
        if (found > kMostFound) return false;
        __syncwarp();
        for (int i = lane_; i < found; i += kWarp) {
            const unsigned long long own = shared_.found[i];
            int larger = 0;
            if (found > count)
#pragma unroll 8
                for (int k = 0; k < found; ++k) larger += shared_.found[k] > own ? 1 : 0;
            if (larger < count) take(int(~std::uint32_t(own)));
        }
        return true;
    }
    /// Keeps the pages of the listed groups whose keys reach the bound. Four lanes read a group, all groups at once.
    /// @return how many they are
    __device__ int readGroups(int groups, std::uint32_t bound) {
        constexpr int kTurns = kMostGroups / (kWarp / 4);
        float4 four[kTurns];
        int pages[kTurns];
#pragma unroll
        for (int t = 0; t < kTurns; ++t) {
            const int group = t * (kWarp / 4) + lane_ / 4;
            pages[t] = group < groups ? shared_.groups[group] * kPeakPages + lane_ % 4 * 4 : pages_;
            if (t * (kWarp / 4) < groups) // what lies behind the last page is not kept
                four[t] = *reinterpret_cast<const float4*>(scores_ + (pages[t] < pages_ ? pages[t] : 0));
        }
        std::uint32_t hits = 0; // bits: which of this lane's scores reach the bound
#pragma unroll
        for (int t = 0; t < kTurns; ++t)
            if (t * (kWarp / 4) < groups) {
                const float scores[4] = {four[t].x, four[t].y, four[t].z, four[t].w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (pages[t] + i < pages_ && keyOf(pages[t] + i, scores[i]) >= bound) hits |= 1u << (4 * t + i);
            }
        int found = 0, place = placeOf(__popc(hits), found);
#pragma unroll
        for (int t = 0; t < kTurns; ++t)
            if ((hits >> (4 * t) & 15) != 0) {
                const float scores[4] = {four[t].x, four[t].y, four[t].z, four[t].w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if ((hits >> (4 * t + i) & 1) != 0) keep(place, rankingKey(scores[i]), pages[t] + i);
            }
        return found;
    }
    /// Finds the last key to be taken bit by bit, reading all scores each time. Of those that equal it, the lowest
    /// pages are taken.
    template <class Take> __device__ void takeAnyhow(int count, Take&& take) {
        const auto countAll = [&](std::uint32_t bound) {
            int here = 0;
            for (int page = lane_; page < pages_; page += kWarp) here += keyOf(page, scores_[page]) >= bound ? 1 : 0;
            return __reduce_add_sync(0xffffffffu, here);
        };
        std::uint32_t last = 0;
        for (int bit = 31; bit >= 0; --bit) {
            const std::uint32_t next = last | 1u << bit;
            if (countAll(next) >= count) last = next;
        }
        int equal = last == 0 ? 0 : count - (last == 0xffffffffu ? 0 : countAll(last + 1)); // so many are taken
        for (int first = 0; first < pages_; first += kWarp) {
            const int page = first + lane_;
            const std::uint32_t key = page < pages_ ? keyOf(page, scores_[page]) : 0u;
            const unsigned ties = __ballot_sync(0xffffffffu, last != 0 && key == last);
            const int rank = __popc(ties & ((1u << lane_) - 1));
            if (key > last || (last != 0 && key == last && rank < equal)) take(page);
            equal -= min(equal, __popc(ties));
        }
    }

    Shared& shared_;
    const float* const scores_;
    const std::uint32_t* const always_;
    const int pages_, lane_;
    const bool byPage_; // pages are so few that the keys are theirs
    std::uint32_t mine_[kOfLane];
};

} // namespace kvscope::cuda
