// The slots of cache=global-lru: one pool for all rows and layers, the least recently selected block leaves first.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvscope::serve {

/// A block of one row, layer and KV head.
struct PooledBlock {
    int row = 0, layer = 0, kvHead = 0;
    std::int32_t block = 0;
    bool operator==(const PooledBlock&) const = default;
};

/// Says which blocks have a slot. It holds no keys and values: on a backend whose two tiers are the same memory nothing
/// has to be copied to know what would be.
class SlotPool {
public:
    /// A step selects these blocks of one layer, of all rows, each of them once. Those that have a slot are hits, and
    /// none of them leaves before all have one; then least recently selected blocks leave until at most `slots` are
    /// left, the layer's own last. @return those that had none, valid until the next call
    std::span<const PooledBlock> select(std::span<const PooledBlock> blocks, std::int64_t slots);
    /// A block that has been on the device anyway gets a slot.
    void keep(const PooledBlock& block);
    /// The row gives all its slots back.
    void release(int row);

    std::int64_t used() const { return std::int64_t(order_.size()); }
    bool holds(const PooledBlock& block) const { return places_.count(block) > 0; }

private:
    struct Hash {
        std::size_t operator()(const PooledBlock& b) const;
    };
    std::list<PooledBlock> order_; // the most recently selected first
    std::unordered_map<PooledBlock, std::list<PooledBlock>::iterator, Hash> places_;
    std::vector<PooledBlock> missed_;
};

} // namespace kvscope::serve
