#include "core/engine/cpu/cpu_prefix_transfers.h"

#include <algorithm>
#include <optional>

namespace kvscope {

void CpuPrefixTransfers::fetch(KvHead& head, std::span<const std::int32_t> pages, int complete, int step,
                               std::vector<std::uint8_t>& hit) {
    const auto slots = std::size_t(head.device.slots());
    const auto whole = pages.first(std::size_t(std::lower_bound(pages.begin(), pages.end(), complete) - pages.begin()));
    kept_.clear();
    for (const std::int32_t page : whole)
        if (kept_.size() < slots && head.device.resident(BlockId{page})) kept_.push_back(page);
    for (const std::int32_t page : whole)
        if (kept_.size() < slots && !head.device.resident(BlockId{page})) kept_.push_back(page);
    std::sort(kept_.begin(), kept_.end());
    wasThere_.assign(kept_.size(), 0);
    loaded_ += head.device.admit(kept_, std::nullopt, step, head.store, wasThere_, copies_);
    loaded_ += int(whole.size() - kept_.size());
    hit.assign(pages.size(), 1); // an incomplete page is
    std::size_t next = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
        const bool hasSlot = next < kept_.size() && kept_[next] == whole[i];
        hit[i] = hasSlot ? wasThere_[next] : 0;
        next += hasSlot;
    }
}

void CpuPrefixTransfers::passThrough(const KvHead& head, int complete) {
    for (const BlockId page : idsUpTo<BlockId>(complete)) loaded_ += !head.device.resident(page);
}

void CpuPrefixTransfers::account(LayerRecord& layer, bool waits) {
    kernels_.copy(copies_);
    copies_.clear();
    const std::int64_t pageBytes = cache_.layout().bytes();
    const std::int64_t loadedNs = link_.transferNs(loaded_ * pageBytes);
    layer.h2dBlocks += loaded_;
    layer.h2dBytes += loaded_ * pageBytes;
    layer.d2hBlocks += stored_;
    layer.d2hBytes += stored_ * pageBytes;
    layer.transferNs += loadedNs + link_.transferNs(stored_ * pageBytes);
    if (waits) layer.exposedNs += loadedNs;
    loaded_ = stored_ = 0;
}

} // namespace kvscope
