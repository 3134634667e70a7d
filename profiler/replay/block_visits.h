// The requests that one block cache saw, as changes from one to the next. Selections resemble their neighbours, so this
// is about ten times smaller than the sets themselves, and every question about caches costs only as much as changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvscope {

/// A request is a set of blocks that must be resident together. A visit is a block's stay in consecutive requests.
class BlockVisits {
public:
    /// A block of a request that the request before it did not have.
    class Entry {
    public:
        Entry(std::int32_t block, bool begins, bool counted, bool first)
            : bits_(std::uint32_t(block) | (begins ? kBegins : 0) | (counted ? 0 : kUncounted) | (first ? kFirst : 0)) {
        }
        std::int32_t block() const { return std::int32_t(bits_ & kBlock); }
        bool begins() const { return (bits_ & kBegins) != 0; }     // has no copy elsewhere: a hit, never loaded
        bool counted() const { return (bits_ & kUncounted) == 0; } // false: it may be loaded, but is not in any ratio
        bool first() const { return (bits_ & kFirst) != 0; }       // no earlier request had it
        bool compulsory() const { return first() && !begins() && counted(); }
        /// The same of block + by.
        Entry shifted(std::int32_t by) const { return {block() + by, begins(), counted(), first()}; }

    private:
        static constexpr std::uint32_t kBegins = 1u << 31, kUncounted = 1u << 30, kFirst = 1u << 29,
                                       kBlock = kFirst - 1;
        std::uint32_t bits_;
    };

    static constexpr std::int32_t kMaxBlock = (1 << 29) - 1;
    static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

    /// Appends a request. wanted: ascending, no duplicates, 0..kMaxBlock. fresh: the block that begins with this
    /// request, or -1. counted: whether its hits and misses are asked for; false for what only fills the cache.
    void add(std::span<const std::int32_t> wanted, std::int32_t fresh = -1, bool counted = true);
    /// Appends the request that the last one becomes when `left` leave and `entered` enter, both ascending. size: its
    /// blocks, of which `counted` are counted.
    void addChange(std::span<const Entry> entered, std::span<const std::int32_t> left, int size, int counted);

    std::size_t requests() const { return steps_.size(); }
    int size(std::size_t request) const { return steps_[request].size; }       // blocks
    int counted(std::size_t request) const { return steps_[request].counted; } // of them
    std::span<const Entry> entered(std::size_t request) const {
        const std::size_t begin = request == 0 ? 0 : steps_[request - 1].enteredEnd;
        return std::span(entered_).subspan(begin, steps_[request].enteredEnd - begin);
    }
    /// Blocks of the request before that this one has not, ascending.
    std::span<const std::int32_t> left(std::size_t request) const {
        const std::size_t begin = leftBegin(request);
        return std::span(left_).subspan(begin, steps_[request].leftEnd - begin);
    }
    /// Where left(request) begins in the list of all departures.
    std::size_t leftBegin(std::size_t request) const { return request == 0 ? 0 : steps_[request - 1].leftEnd; }
    /// [departure] request that has the block again, or kNever.
    std::vector<std::int32_t> nextVisits() const;

    std::int64_t references() const { return references_; } // counted blocks, all requests
    std::int64_t compulsory() const { return compulsory_; } // first uses that must be loaded, counted
    int largest() const { return largest_; }                // blocks of the largest request
    std::int32_t blockLimit() const { return blockLimit_; } // one more than the highest block
    std::size_t departures() const { return left_.size(); }

private:
    void endRequest(int size, int counted);

    struct Step {
        std::uint32_t enteredEnd = 0, leftEnd = 0;
        std::int32_t size = 0, counted = 0;
    };
    std::vector<Step> steps_;
    std::vector<Entry> entered_;
    std::vector<std::int32_t> left_;
    std::vector<std::int32_t> lastRequest_; // [block] of the requests so far; -1: none
    std::vector<std::int32_t> current_;     // blocks of the last request; both only while sets are added
    std::int64_t references_ = 0, compulsory_ = 0;
    int largest_ = 0;
    std::int32_t blockLimit_ = 0;
};

/// When each block is visited; for starting in the middle of a long history.
class VisitIndex {
public:
    explicit VisitIndex(const BlockVisits& visits);
    /// First request from `from` on in which the block enters, or BlockVisits::kNever.
    std::int32_t nextEntry(std::int32_t block, std::int32_t from) const;
    /// Last request before `before` that had the block; -1: none.
    std::int32_t lastUse(std::int32_t block, std::int32_t before) const;
    std::int32_t blockLimit() const { return std::int32_t(begin_.size()) - 1; }

private:
    std::vector<std::uint32_t> begin_;        // [block + 1] into the next two
    std::vector<std::int32_t> entered_, end_; // requests entered_ .. end_ - 1 have the block
};

} // namespace kvscope
