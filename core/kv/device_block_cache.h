// The device tier of one (sequence, layer, KV head): a bounded pool of block slots with a slot map.
#pragma once

#include "core/cache/cache_policy.h"
#include "core/kv/block_layout.h"
#include "kernels/kernels.h"
#include "kernels/selection.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

class DeviceBlockCache {
public:
    DeviceBlockCache() = default;
    /// slotData: [slots] blocks of `layout`, owned by the caller.
    DeviceBlockCache(const BlockLayout& layout, float* slotData, int slots, int maxBlocks, const CachePolicy& policy);

    /// Makes room for `wanted` (ascending, no duplicates, at most slots()): afterwards every wanted block has a slot.
    /// hit[i] tells whether wanted[i] was resident. `fresh` (or -1) is a block that begins now and has no host copy
    /// yet: it gets a slot, counts as a hit and is not loaded. Loads to perform are appended to `copies`, read from
    /// hostBlocks.
    /// @return number of blocks to load
    int admit(std::span<const std::int32_t> wanted, std::int32_t fresh, int step, const float* hostBlocks,
              std::span<std::uint8_t> hit, std::vector<CopyItem>& copies);

    /// What the policy takes for the last use of a resident block, until it is wanted again.
    void rank(std::int32_t block, std::int32_t use) { lastUse_[std::size_t(slotOf_[std::size_t(block)])] = use; }

    int slots() const { return int(map_.size()); }
    std::span<const std::int32_t> map() const { return map_; } // slot -> block, -1 empty
    bool resident(std::int32_t block) const { return slotOf_[std::size_t(block)] >= 0; }
    float* block(std::int32_t id) { return data_ + std::size_t(slotOf_[std::size_t(id)]) * floats_; }
    const float* block(std::int32_t id) const { return data_ + std::size_t(slotOf_[std::size_t(id)]) * floats_; }

private:
    float* data_ = nullptr;
    std::size_t floats_ = 0;
    std::int64_t blockBytes_ = 0;
    const CachePolicy* policy_ = nullptr;
    std::vector<std::int32_t> map_, load_, lastUse_, order_, before_;
    std::vector<std::int32_t> slotOf_; // block -> slot, -1 not resident
};

} // namespace kvscope
