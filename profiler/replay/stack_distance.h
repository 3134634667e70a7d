// Stack distances for requests that are sets. With any number of slots the blocks of the last request are resident. The
// other blocks are in a stack: a block's place in it is the number of slots from which on the block is resident too.
// Only blocks that enter or leave a request change the stack.
#pragma once

#include "base/indexed.h"
#include "profiler/replay/block_visits.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvscope {

/// Counts one more hit from this number of slots on. The counts are made when the first one comes, because most caches
/// have hits in no cold step.
inline void countCold(Numbered<std::int64_t>& hitsFrom, int slots, int sizes) {
    if (hitsFrom.empty()) hitsFrom.assign(sizes, 0);
    ++hitsFrom[slots];
}

/// The LRU stack: blocks that are not in the last request, in the order of their last use. Counts how many of them were
/// used later than a given one.
class LruStack {
public:
    explicit LruStack(const BlockVisits& visits)
        : visits_(visits), place_(visits.blockLimit(), -1), words_(std::bit_ceil(place_.size() / 32 + 2)),
          counts_(words_.size() + 1, 0), blockAt_(words_.size() * 64, -1), hitsFrom_(visits.blockLimit() + 1, 0) {}

    /// cold: the request belongs to a cold step, and its hits are counted apart as well.
    void next(std::size_t request, bool cold = false) {
        const int above = request == 0 ? 0 : visits_.size(request - 1);
        const auto entered = visits_.entered(request);
        for (const BlockVisits::Entry& e : entered) {
            const std::int32_t place = place_[e.block()];
            if (place < 0 && e.first()) continue;
            // Where the stack began in the middle of the requests, a block that it does not know was used longer ago
            // than all that it knows.
            const int distance = above + (place >= 0 ? countFrom(std::size_t(place)) : held_ + 1);
            if (!e.counted() || e.begins()) continue;
            const int slots = std::min(distance, hitsFrom_.count() - 1);
            ++hitsFrom_[slots];
            if (cold) countCold(coldHitsFrom_, slots, hitsFrom_.count());
        }
        for (const BlockVisits::Entry& e : entered) take(e.block());
        // In ascending order, so that of blocks that leave at once the lowest counts as the oldest.
        for (const std::int32_t block : visits_.left(request)) push(block);
    }
    /// [slots] how many references that count hit from this number of slots on.
    const Numbered<std::int64_t>& hitsFrom() const { return hitsFrom_; }
    /// The same of references in cold steps; empty where there are none.
    const Numbered<std::int64_t>& coldHitsFrom() const { return coldHitsFrom_; }

    /// Puts a block on the stack as the one used last.
    void push(std::int32_t block) {
        if (end_ == blockAt_.size()) compact();
        words_[end_ / 64] |= std::uint64_t(1) << (end_ % 64);
        addAt(end_ / 64, 1);
        blockAt_[end_] = block;
        place_[block] = std::int32_t(end_++);
        ++held_;
    }

private:
    void take(std::int32_t block) {
        std::int32_t& place = place_[block];
        if (place < 0) return;
        const auto at = std::size_t(place);
        words_[at / 64] &= ~(std::uint64_t(1) << (at % 64));
        addAt(at / 64, -1);
        place = -1;
        --held_;
    }
    /// How many blocks are at this place or a later one.
    int countFrom(std::size_t place) const {
        int before = std::popcount(words_[place / 64] & ((std::uint64_t(1) << (place % 64)) - 1));
        for (std::size_t i = place / 64; i > 0; i &= i - 1) before += counts_[i];
        return held_ - before;
    }
    void addAt(std::size_t word, int change) {
        for (std::size_t i = word + 1; i < counts_.size(); i += i & (~i + 1)) counts_[i] += change;
    }
    /// Removes the empty places. There are at least twice as many places as blocks, so that this happens at most once
    /// in as many pushes as there are blocks.
    void compact() {
        std::size_t to = 0;
        for (std::size_t from = 0; from < end_; ++from) {
            if ((words_[from / 64] >> (from % 64) & 1) == 0) continue;
            blockAt_[to] = blockAt_[from];
            place_[blockAt_[to]] = std::int32_t(to);
            ++to;
        }
        std::fill(words_.begin(), words_.end(), 0);
        std::fill(counts_.begin(), counts_.end(), 0);
        for (std::size_t i = 0; i < to; ++i) words_[i / 64] |= std::uint64_t(1) << (i % 64);
        for (std::size_t w = 0; w * 64 < to; ++w) addAt(w, std::popcount(words_[w]));
        end_ = to;
    }

    const BlockVisits& visits_;
    Numbered<std::int32_t> place_;      // [block]; -1: in the last request, or never used
    std::vector<std::uint64_t> words_;  // a bit for each place in use, the oldest first
    std::vector<std::int32_t> counts_;  // Fenwick tree over the number of bits in each word
    std::vector<std::int32_t> blockAt_; // [place]
    Numbered<std::int64_t> hitsFrom_, coldHitsFrom_;
    std::size_t end_ = 0;
    int held_ = 0;
};

/// The stack of Belady's choice. Blocks that leave a request are carried down the stack: at each place the block that
/// is needed sooner stays, and the other is carried on. NextUse: (block, departure, request) -> the next request that
/// has the block again.
template <class NextUse> class BeladyStack {
public:
    BeladyStack(const BlockVisits& visits, NextUse nextUse)
        : visits_(visits), nextUse_(std::move(nextUse)), place_(visits.blockLimit(), -1),
          hitsFrom_(visits.blockLimit() + 1, 0) {
        grow(visits.largest());
    }

    /// cold: as in LruStack.
    void next(std::size_t request, bool cold = false) {
        const int before = request == 0 ? 0 : visits_.size(request - 1), after = visits_.size(request);
        holes_.clear();
        int missing = 0; // blocks that enter and are not in the stack: with any number of slots a block must leave
        for (const BlockVisits::Entry& e : visits_.entered(request)) {
            std::int32_t& place = place_[e.block()];
            // Where the stack began in the middle of the requests, a block that it does not know is resident with none
            // of the numbers of slots in use.
            const int distance = place >= 0 ? place : std::min(top_ + 1, hitsFrom_.count() - 1);
            if (e.counted() && !e.begins() && (place >= 0 || !e.first())) {
                ++hitsFrom_[distance];
                if (cold) countCold(coldHitsFrom_, distance, hitsFrom_.count());
            }
            if (place < 0) {
                ++missing;
                continue;
            }
            holes_.push_back(place);
            place = -1;
        }
        std::sort(holes_.begin(), holes_.end());
        carried_.clear();
        std::size_t departure = visits_.leftBegin(request);
        for (const std::int32_t block : visits_.left(request))
            carry(block, nextUse_(block, departure++, std::int32_t(request)));
        // The blocks of a request lie above the stack: `before` of the last request, `after` of this one.
        std::size_t hole = 0;
        grow(after);
        for (int place = before + 1; place <= after; ++place) {
            if (hole < holes_.size() && holes_[hole] == place)
                ++hole;
            else if (block_[place] >= 0)
                carry(block_[place], next_[place]);
            put(place, kNobody, BlockVisits::kNever);
        }
        for (int place = after + 1; place <= before; ++place) putSoonest(place);
        int place = std::max(before, after) + 1;
        for (; hole < holes_.size(); ++hole) {
            sink(place, holes_[hole]);
            putSoonest(holes_[hole]);
            place = holes_[hole] + 1;
        }
        if (missing > 0 || !carried_.empty()) {
            sink(place, top_ + 1);
            while (!carried_.empty() && soonest() != BlockVisits::kNever) {
                grow(top_ + 1);
                putSoonest(top_);
            }
            for (const Carried& rest : carried_) place_[rest.block] = -1; // blocks never needed again
        }
        shrink(after);
    }
    const Numbered<std::int64_t>& hitsFrom() const { return hitsFrom_; }
    const Numbered<std::int64_t>& coldHitsFrom() const { return coldHitsFrom_; }
    /// Fills a stack that begins in the middle of the requests: appends the next block below the last request's `above`
    /// blocks. next: the request that has the block again, not before those of the blocks appended earlier.
    void place(int above, std::int32_t block, std::int32_t next) {
        const int at = std::max(above, placed_) + 1;
        grow(at);
        put(at, block, next);
        placed_ = at;
    }

private:
    static constexpr std::int32_t kNobody = -1;
    struct Carried {
        std::int32_t next = 0, block = 0;
        bool operator<(const Carried& other) const { return next > other.next; } // for std::*_heap: soonest in front
    };

    void carry(std::int32_t block, std::int32_t next) {
        place_[block] = -1;
        carried_.push_back({next, block});
        std::push_heap(carried_.begin(), carried_.end());
    }
    std::int32_t soonest() const { return carried_.front().next; }
    void put(int place, std::int32_t block, std::int32_t next) {
        block_[place] = block;
        next_[place] = next;
        if (block >= 0) place_[block] = place;
    }
    void putSoonest(int place) {
        if (carried_.empty()) return put(place, kNobody, BlockVisits::kNever); // with so many slots one is empty
        std::pop_heap(carried_.begin(), carried_.end());
        const Carried taken = carried_.back();
        carried_.pop_back();
        put(place, taken.block, taken.next);
    }
    /// Goes through the places from .. end - 1. Where the block there is needed later than the soonest carried one, the
    /// two change places.
    void sink(int from, int end) {
        constexpr int kStride = 16;
        for (int place = from; place < end && !carried_.empty(); ++place) {
            const std::int32_t limit = soonest();
            while (place + kStride <= end) { // no branch for each place, so that the compiler uses vectors
                const std::int32_t* next = next_.data() + place;
                int later = 0;
                for (int i = 0; i < kStride; ++i) later |= next[i] > limit ? 1 : 0;
                if (later != 0) break;
                place += kStride;
            }
            while (place < end && next_[place] <= limit) ++place;
            if (place >= end) return;
            const Carried down{next_[place], block_[place]};
            putSoonest(place);
            if (down.block < 0) continue; // the place was empty: nothing is carried on
            place_[down.block] = -1;
            carried_.push_back(down);
            std::push_heap(carried_.begin(), carried_.end());
        }
    }
    void grow(int top) {
        if (top > top_) top_ = top;
        if (top_ >= next_.count()) {
            next_.resize(top_ + 1, BlockVisits::kNever);
            block_.resize(top_ + 1, kNobody);
        }
    }
    /// Removes places at the bottom whose blocks are never needed again.
    void shrink(int least) {
        while (top_ > least && next_[top_] == BlockVisits::kNever) {
            if (block_[top_] >= 0) place_[block_[top_]] = -1;
            put(top_--, kNobody, BlockVisits::kNever);
        }
    }

    const BlockVisits& visits_;
    NextUse nextUse_;
    Numbered<std::int32_t> place_;        // [block]; -1: in the last request, never used or never needed again
    Numbered<std::int32_t> next_, block_; // [place] next use and block
    std::vector<Carried> carried_;        // a heap of blocks on their way down
    std::vector<int> holes_;              // places that blocks have left because they entered the request
    Numbered<std::int64_t> hitsFrom_, coldHitsFrom_;
    int top_ = 0; // lowest place in use
    int placed_ = 0;
};

} // namespace kvscope
