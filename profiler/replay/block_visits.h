// The requests of one block cache, stored as the changes from each request to the next. A selection resembles the one
// before, so that the changes take a tenth of the memory of the sets, and a replay takes time for changed blocks only.
#pragma once

#include "base/indexed.h"
#include "kernels/packed_block.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvscope {

/// A request is a set of blocks that must be resident at once. A visit is a run of consecutive requests that have a
/// block.
class BlockVisits {
public:
    /// A block of a request that the request before it did not have.
    class Entry {
    public:
        Entry(std::int32_t block, bool begins, bool counted, bool first)
            : bits_(std::uint32_t(block) | (begins ? kBegins : 0) | (counted ? 0 : kUncounted) | (first ? kFirst : 0)) {
        }
        std::int32_t block() const { return std::int32_t(bits_ & kBlock); }
        bool begins() const { return (bits_ & kBegins) != 0; }     // the block is new: a hit that is never loaded
        bool counted() const { return (bits_ & kUncounted) == 0; } // false: neither a hit nor a miss, but may be loaded
        bool first() const { return (bits_ & kFirst) != 0; }       // no earlier request had the block
        bool compulsory() const { return first() && !begins() && counted(); }
        /// The same entry for the block number block() + by.
        Entry shifted(std::int32_t by) const { return {block() + by, begins(), counted(), first()}; }

    private:
        static constexpr std::uint32_t kBegins = 1u << 31, kUncounted = 1u << 30, kFirst = 1u << 29,
                                       kBlock = kFirst - 1;
        std::uint32_t bits_;
    };

    static constexpr std::int32_t kMaxBlock = (1 << 29) - 1;
    static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();

    /// Appends a request. wanted: its blocks, their ids ascending, without duplicates, 0..kMaxBlock. fresh: the block
    /// that is new with this request, or -1. counted: whether its hits and misses count; false for a request that only
    /// fills the cache.
    void add(std::span<const PackedBlock> wanted, std::int32_t fresh = -1, bool counted = true);
    /// The same for blocks that are ids alone.
    void add(std::span<const std::int32_t> wanted, std::int32_t fresh = -1, bool counted = true);
    /// Appends the request that results when `left` leave the last request and `entered` enter, both ascending. It has
    /// `size` blocks, of which `counted` count.
    void addChange(std::span<const Entry> entered, std::span<const std::int32_t> left, int size, int counted);

    std::size_t requests() const { return steps_.size(); }
    int size(std::size_t request) const { return steps_[request].size; }       // blocks
    int counted(std::size_t request) const { return steps_[request].counted; } // blocks that count
    std::span<const Entry> entered(std::size_t request) const {
        const std::size_t begin = request == 0 ? 0 : steps_[request - 1].enteredEnd;
        return std::span(entered_).subspan(begin, steps_[request].enteredEnd - begin);
    }
    /// Blocks that the request before has and this one has not, ascending.
    std::span<const std::int32_t> left(std::size_t request) const {
        const std::size_t begin = leftBegin(request);
        return std::span(left_).subspan(begin, steps_[request].leftEnd - begin);
    }
    /// Where left(request) begins in the list of all departures.
    std::size_t leftBegin(std::size_t request) const { return request == 0 ? 0 : steps_[request - 1].leftEnd; }
    /// [departure] the next request that has the block again, or kNever.
    std::vector<std::int32_t> nextVisits() const;

    std::int64_t references() const { return references_; } // blocks that count, over all requests
    std::int64_t compulsory() const { return compulsory_; } // of these, first uses that must be loaded
    int largest() const { return largest_; }                // blocks of the largest request
    std::int32_t blockLimit() const { return blockLimit_; } // one more than the highest block
    std::size_t departures() const { return left_.size(); }

private:
    template <class Block> void addBlocks(std::span<const Block> wanted, std::int32_t fresh, bool counted);
    void endRequest(int size, int counted);

    struct Step {
        std::uint32_t enteredEnd = 0, leftEnd = 0;
        std::int32_t size = 0, counted = 0;
    };
    std::vector<Step> steps_;
    std::vector<Entry> entered_;
    std::vector<std::int32_t> left_;
    Numbered<std::int32_t> lastRequest_; // [block] the last request that had the block; -1: none
    std::vector<std::int32_t> current_;  // ids of the last request's blocks. Both are used by add() only
    std::int64_t references_ = 0, compulsory_ = 0;
    int largest_ = 0;
    std::int32_t blockLimit_ = 0;
};

} // namespace kvscope
