// Stack distances of set requests. At every size, the blocks of the last request are resident; below them, a stack says
// for each other block from how many slots on it is resident too. Only blocks that enter or leave a request touch it.
#pragma once

#include "profiler/replay/block_visits.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvscope {

/// Blocks that are in no request now, by when they were last. Counts how many were used later than a given one.
class LruStack {
public:
    explicit LruStack(const BlockVisits& visits)
        : visits_(visits), place_(std::size_t(visits.blockLimit()), -1),
          words_(std::bit_ceil(std::size_t(visits.blockLimit()) / 32 + 2)), counts_(words_.size() + 1, 0),
          blockAt_(words_.size() * 64, -1), hitsFrom_(std::size_t(visits.blockLimit()) + 1, 0) {}

    void next(std::size_t request) {
        const int above = request == 0 ? 0 : visits_.size(request - 1);
        const auto entered = visits_.entered(request);
        for (const BlockVisits::Entry& e : entered) {
            const std::int32_t place = place_[std::size_t(e.block())];
            if (place >= 0 && e.counted() && !e.begins()) ++hitsFrom_[std::size_t(above + countFrom(place))];
        }
        for (const BlockVisits::Entry& e : entered) take(e.block());
        for (const std::int32_t block : visits_.left(request)) push(block); // ascending: of equals the lowest is oldest
    }
    /// [slots] counted references that are resident from this number of slots on.
    const std::vector<std::int64_t>& hitsFrom() const { return hitsFrom_; }

    /// Makes the block the most recent one.
    void push(std::int32_t block) {
        if (end_ == blockAt_.size()) compact();
        words_[end_ / 64] |= std::uint64_t(1) << (end_ % 64);
        addAt(end_ / 64, 1);
        blockAt_[end_] = block;
        place_[std::size_t(block)] = std::int32_t(end_++);
        ++held_;
    }

private:
    void take(std::int32_t block) {
        std::int32_t& place = place_[std::size_t(block)];
        if (place < 0) return;
        words_[std::size_t(place) / 64] &= ~(std::uint64_t(1) << (place % 64));
        addAt(std::size_t(place) / 64, -1);
        place = -1;
        --held_;
    }
    /// Blocks at this place or a later one.
    int countFrom(std::int32_t place) const {
        int before = std::popcount(words_[std::size_t(place) / 64] & ((std::uint64_t(1) << (place % 64)) - 1));
        for (std::size_t i = std::size_t(place) / 64; i > 0; i &= i - 1) before += counts_[i];
        return held_ - before;
    }
    void addAt(std::size_t word, int change) {
        for (std::size_t i = word + 1; i < counts_.size(); i += i & (~i + 1)) counts_[i] += change;
    }
    /// There are at least twice as many places as blocks, so this happens once in as many pushes as there are blocks.
    void compact() {
        std::size_t to = 0;
        for (std::size_t from = 0; from < end_; ++from) {
            if ((words_[from / 64] >> (from % 64) & 1) == 0) continue;
            blockAt_[to] = blockAt_[from];
            place_[std::size_t(blockAt_[to])] = std::int32_t(to);
            ++to;
        }
        std::fill(words_.begin(), words_.end(), 0);
        std::fill(counts_.begin(), counts_.end(), 0);
        for (std::size_t i = 0; i < to; ++i) words_[i / 64] |= std::uint64_t(1) << (i % 64);
        for (std::size_t w = 0; w * 64 < to; ++w) addAt(w, std::popcount(words_[w]));
        end_ = to;
    }

    const BlockVisits& visits_;
    std::vector<std::int32_t> place_;  // [block]; -1: in the last request, or never used
    std::vector<std::uint64_t> words_; // a bit per place, the oldest first
    std::vector<std::int32_t> counts_; // Fenwick tree of the bits per word
    std::vector<std::int32_t> blockAt_;
    std::vector<std::int64_t> hitsFrom_;
    std::size_t end_ = 0;
    int held_ = 0;
};

/// The stack of Belady's choice: the place of a block is the number of slots from which on it is resident. A request
/// pushes the blocks that leave it down: at each place the block that is needed sooner stays.
/// NextUse: (block, departure, request) -> request that has the block again.
template <class NextUse> class BeladyStack {
public:
    BeladyStack(const BlockVisits& visits, NextUse nextUse)
        : visits_(visits), nextUse_(std::move(nextUse)), place_(std::size_t(visits.blockLimit()), -1),
          hitsFrom_(std::size_t(visits.blockLimit()) + 1, 0) {
        grow(visits.largest());
    }

    void next(std::size_t request) {
        const int before = request == 0 ? 0 : visits_.size(request - 1), after = visits_.size(request);
        holes_.clear();
        int missing = 0; // entered blocks that no size has: every size must let a block go for each
        for (const BlockVisits::Entry& e : visits_.entered(request)) {
            std::int32_t& place = place_[std::size_t(e.block())];
            if (place < 0) {
                ++missing;
                continue;
            }
            if (e.counted() && !e.begins()) ++hitsFrom_[std::size_t(place)];
            holes_.push_back(place);
            place = -1;
        }
        std::sort(holes_.begin(), holes_.end());
        carried_.clear();
        std::size_t departure = visits_.leftBegin(request);
        for (const std::int32_t block : visits_.left(request))
            carry(block, nextUse_(block, departure++, std::int32_t(request)));
        // The last request had `before` blocks above the stack, this one has `after`.
        std::size_t hole = 0;
        grow(after);
        for (int place = before + 1; place <= after; ++place) {
            if (hole < holes_.size() && holes_[hole] == place)
                ++hole;
            else if (block_[std::size_t(place)] >= 0)
                carry(block_[std::size_t(place)], next_[std::size_t(place)]);
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
            for (const Carried& rest : carried_) place_[std::size_t(rest.block)] = -1; // never needed again
        }
        shrink(after);
    }
    const std::vector<std::int64_t>& hitsFrom() const { return hitsFrom_; }

private:
    static constexpr std::int32_t kNobody = -1;
    struct Carried {
        std::int32_t next = 0, block = 0;
        bool operator<(const Carried& other) const { return next > other.next; } // std::*_heap: soonest in front
    };

    void carry(std::int32_t block, std::int32_t next) {
        place_[std::size_t(block)] = -1;
        carried_.push_back({next, block});
        std::push_heap(carried_.begin(), carried_.end());
    }
    std::int32_t soonest() const { return carried_.front().next; }
    void put(int place, std::int32_t block, std::int32_t next) {
        block_[std::size_t(place)] = block;
        next_[std::size_t(place)] = next;
        if (block >= 0) place_[std::size_t(block)] = place;
    }
    void putSoonest(int place) {
        if (carried_.empty()) return put(place, kNobody, BlockVisits::kNever); // the cache of this size is not full
        std::pop_heap(carried_.begin(), carried_.end());
        const Carried taken = carried_.back();
        carried_.pop_back();
        put(place, taken.block, taken.next);
    }
    /// At places from .. end - 1, the carried block that is needed soonest changes places with one needed later.
    void sink(int from, int end) {
        constexpr int kStride = 16;
        for (int place = from; place < end && !carried_.empty(); ++place) {
            const std::int32_t limit = soonest();
            while (place + kStride <= end) { // without a branch per place, so that the compiler uses vectors
                const std::int32_t* next = next_.data() + place;
                int later = 0;
                for (int i = 0; i < kStride; ++i) later |= next[i] > limit ? 1 : 0;
                if (later != 0) break;
                place += kStride;
            }
            while (place < end && next_[std::size_t(place)] <= limit) ++place;
            if (place >= end) return;
            const Carried down{next_[std::size_t(place)], block_[std::size_t(place)]};
            putSoonest(place);
            if (down.block < 0) continue; // an empty slot took it
            place_[std::size_t(down.block)] = -1;
            carried_.push_back(down);
            std::push_heap(carried_.begin(), carried_.end());
        }
    }
    void grow(int top) {
        if (top > top_) top_ = top;
        if (std::size_t(top_) >= next_.size()) {
            next_.resize(std::size_t(top_) + 1, BlockVisits::kNever);
            block_.resize(std::size_t(top_) + 1, kNobody);
        }
    }
    /// Blocks never needed again at the bottom are as good as empty slots.
    void shrink(int least) {
        while (top_ > least && next_[std::size_t(top_)] == BlockVisits::kNever) {
            if (block_[std::size_t(top_)] >= 0) place_[std::size_t(block_[std::size_t(top_)])] = -1;
            put(top_--, kNobody, BlockVisits::kNever);
        }
    }

    const BlockVisits& visits_;
    NextUse nextUse_;
    std::vector<std::int32_t> place_;        // [block]; -1: in the last request, never used or never needed again
    std::vector<std::int32_t> next_, block_; // [place] next use and block
    std::vector<Carried> carried_;           // a heap
    std::vector<int> holes_;                 // places that entered blocks leave
    std::vector<std::int64_t> hitsFrom_;
    int top_ = 0; // lowest place in use
};

} // namespace kvscope
