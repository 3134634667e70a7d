// The slots of cache=global-lru: one pool for all rows and layers, in which the least recently selected block leaves
// first.
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

/// Keeps a list of the blocks that have a slot. It holds no keys and values: on a backend whose two tiers are the same
/// memory nothing is copied, and the pool says which blocks would be.
class SlotPool {
public:
    /// A step selects these blocks of one layer, of all rows, each of them once. Blocks that have a slot are hits. None
    /// of the selected blocks leaves before all of them have a slot; then the least recently selected blocks leave
    /// until at most `slots` are left, those of this layer last. @return the blocks that had no slot, valid until the
    /// next call
    std::span<const PooledBlock> select(std::span<const PooledBlock> blocks, std::int64_t slots);
    /// Gives a slot to a block that is on the device already.
    void keep(const PooledBlock& block);
    /// Gives all slots of the row back.
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
