#include "core/kv/device_block_cache.h"

#include <cstring>

namespace kvscope {

DeviceBlockCache::DeviceBlockCache(std::int64_t blockBytes, float* slotData, int slots, int maxBlocks,
                                   const CachePolicy& policy)
    : data_(slotData), floats_(Elements(blockBytes) / sizeof(float)), blockBytes_(blockBytes), policy_(&policy),
      map_(slots, -1), load_(slots, -1), lastUse_(slots, -1), slotOf_(maxBlocks, -1) {
    order_.reserve(slots);
    before_.reserve(slots);
}

int DeviceBlockCache::admit(std::span<const std::int32_t> wanted, std::optional<BlockId> fresh, int step,
                            const float* hostBlocks, std::span<std::uint8_t> hit, std::vector<CopyItem>& copies) {
    for (std::size_t i = 0; i < wanted.size(); ++i)
        hit[i] = BlockId{wanted[i]} == fresh || resident(BlockId{wanted[i]}) ? 1 : 0;
    policy_->order(map_, lastUse_, order_);
    before_.assign(map_.begin(), map_.end());
    setDifference(map_, wanted, load_, order_);
    // Clear every replaced block before entering the new ones: an id may leave one slot while others move in.
    for (std::size_t slot = 0; slot < map_.size(); ++slot)
        if (load_[slot] >= 0 && before_[slot] >= 0) slotOf_[BlockId{before_[slot]}] = -1;
    int loads = 0;
    for (std::size_t slot = 0; slot < map_.size(); ++slot) {
        if (load_[slot] < 0) continue;
        const BlockId id{load_[slot]};
        slotOf_[id] = std::int32_t(slot);
        float* to = data_ + slot * floats_;
        if (id == fresh) {
            std::memset(to, 0, floats_ * sizeof(float)); // columns past the tail must stay finite
            continue;
        }
        copies.push_back({hostBlocks + index(id) * floats_, to, floats_ * sizeof(float)});
        ++loads;
    }
    for (const std::int32_t id : wanted) lastUse_[slotOf_[BlockId{id}]] = step;
    return loads;
}

} // namespace kvscope
