// The device tier of one (sequence, layer, KV head): a bounded pool of block slots with a slot map.
#pragma once

#include "base/ids.h"
#include "base/indexed.h"
#include "core/cache/cache_policy.h"
#include "kernels/kernels.h"
#include "kernels/selection.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

class DeviceBlockCache {
public:
    DeviceBlockCache() = default;
    /// slotData: [slots] blocks of `blockBytes`, a multiple of a float's size; owned by the caller.
    DeviceBlockCache(std::int64_t blockBytes, float* slotData, int slots, int maxBlocks, const CachePolicy& policy);

    /// Makes room for `wanted` (ascending, no duplicates, at most slots()): afterwards every wanted block has a slot.
    /// hit[i] tells whether wanted[i] was resident. `fresh` is a block, if there is one, that begins now and has no
    /// host copy yet: it gets a slot, counts as a hit and is not loaded. Loads to perform are appended to `copies`,
    /// read from hostBlocks.
    /// @return number of blocks to load
    int admit(std::span<const std::int32_t> wanted, std::optional<BlockId> fresh, int step, const float* hostBlocks,
              std::span<std::uint8_t> hit, std::vector<CopyItem>& copies);

    /// Sets the last use of a resident block, by which the policy orders slots. It holds until the block is wanted
    /// again.
    void rank(BlockId block, std::int32_t use) { lastUse_[slotOf_[block]] = use; }

    int slots() const { return int(map_.size()); }
    std::span<const std::int32_t> map() const { return map_; } // slot -> block, -1 empty
    bool resident(BlockId block) const { return slotOf_[block] >= 0; }
    float* block(BlockId id) { return RowsOf(data_, floats_)[slotOf_[id]]; }
    const float* block(BlockId id) const { return RowsOf(data_, floats_)[slotOf_[id]]; }

private:
    float* data_ = nullptr;
    std::size_t floats_ = 0;
    std::int64_t blockBytes_ = 0;
    const CachePolicy* policy_ = nullptr;
    Numbered<std::int32_t> map_, load_, lastUse_, order_, before_;
    PerBlock<std::int32_t> slotOf_; // block -> slot, -1 not resident
};

} // namespace kvscope
