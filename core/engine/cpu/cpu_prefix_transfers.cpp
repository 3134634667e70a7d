#include "core/engine/cpu/cpu_prefix_transfers.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvscope {

CpuPrefixTransfers::CpuPrefixTransfers(Kernels& kernels, KvCache& cache, const Link& link, const HeadExtents& heads,
                                       std::function<std::int64_t()> now)
    : kernels_(kernels), cache_(cache), link_(link), now_(std::move(now)), headAt_(heads), ahead_(headAt_.size()),
      aheadTransfers_(headAt_.length(1)) {}

/// Gives slots to as many of `pages` as there are slots for. Lists these in `kept_`, and says in `wasThere_` which of
/// them had a slot before. @return number of pages to load
int CpuPrefixTransfers::giveSlots(KvHead& head, std::span<const std::int32_t> pages, int step) {
    const auto slots = std::size_t(head.device.slots());
    kept_.clear();
    for (const std::int32_t page : pages)
        if (kept_.size() < slots && head.device.resident(BlockId{page})) kept_.push_back(page);
    for (const std::int32_t page : pages)
        if (kept_.size() < slots && !head.device.resident(BlockId{page})) kept_.push_back(page);
    std::sort(kept_.begin(), kept_.end());
    wasThere_.assign(kept_.size(), 0);
    return head.device.admit(kept_, std::nullopt, step, head.store, wasThere_, copies_);
}

void CpuPrefixTransfers::askAhead(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<const std::int32_t> pages,
                                  int step) {
    looksAhead_ = true;
    Ahead& ahead = aheadOf(layer, sequence, kvHead);
    AheadTransfer& transfer = aheadTransfers_[index(layer)];
    ahead = {};
    ahead.loads = giveSlots(cache_.head(sequence, layer, kvHead), pages, step);
    ahead.pages = kept_;
    ahead.hit = wasThere_;
    ahead.firstLoad = transfer.pages;
    ahead.waiting = true;
    transfer.pages += ahead.loads;
}

void CpuPrefixTransfers::sendAhead(LayerId layer) {
    AheadTransfer& transfer = aheadTransfers_[index(layer)];
    kernels_.copy(copies_);
    copies_.clear();
    transfer.transfer = link_.start(link_.modelled(now_()), transfer.pages * pageBytes());
    transfer.queued = true;
}

void CpuPrefixTransfers::arrive(LayerId layer, LayerRecord& record) {
    AheadTransfer& transfer = aheadTransfers_[index(layer)];
    if (!transfer.queued) return;
    const std::int64_t now = link_.modelled(now_());
    const int arrived = transfer.pages - int(link_.missingBytes(transfer.transfer, now) / pageBytes());
    for (const RowId sequence : idsUpTo<RowId>(headAt_.length(0)))
        for (const KvHeadId g : idsUpTo<KvHeadId>(headAt_.length(2))) {
            Ahead& ahead = aheadOf(layer, sequence, g);
            if (ahead.waiting) ahead.late = std::clamp(ahead.firstLoad + ahead.loads - arrived, 0, ahead.loads);
        }
    record.exposedNs += link_.wait(now, transfer.transfer.doneNs);
    record.transferNs += transfer.transfer.doneNs - transfer.transfer.startNs;
    record.h2dBlocks += transfer.pages;
    record.h2dBytes += transfer.pages * pageBytes();
    transfer = {};
}

void CpuPrefixTransfers::fetch(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<const std::int32_t> pages,
                               int complete, int step, std::vector<std::uint8_t>& hit) {
    KvHead& head = cache_.head(sequence, layer, kvHead);
    const auto whole = pages.first(std::size_t(std::lower_bound(pages.begin(), pages.end(), complete) - pages.begin()));
    loaded_ += giveSlots(head, whole, step);
    loaded_ += int(whole.size() - kept_.size());
    hit.assign(pages.size(), 1); // 1 stays for an incomplete page, which is always a hit
    std::size_t next = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
        const bool hasSlot = next < kept_.size() && kept_[next] == whole[i];
        hit[i] = hasSlot ? wasThere_[next] : 0;
        next += hasSlot;
    }
    if (Ahead& ahead = aheadOf(layer, sequence, kvHead); ahead.waiting)
        compare(ahead, whole, hit);
    else
        ahead.predicted = -1;
}

/// Compares what was asked for ahead with the pages that are attended to. A page that travelled is no hit.
void CpuPrefixTransfers::compare(Ahead& ahead, std::span<const std::int32_t> pages, NumberedSpan<std::uint8_t> hit) {
    ahead.waiting = false;
    ahead.predicted = int(ahead.pages.size());
    for (std::size_t i = 0; i < ahead.pages.size(); ++i) {
        const auto at = std::lower_bound(pages.begin(), pages.end(), ahead.pages[i]);
        const bool used = at != pages.end() && *at == ahead.pages[i], travelled = ahead.hit[i] == 0;
        ahead.used += used;
        ahead.wasted += travelled && !used;
        if (travelled && used) hit[at - pages.begin()] = 0;
    }
}

void CpuPrefixTransfers::recordAhead(LayerId layer, RowId sequence, KvHeadId kvHead, SelectionRecord& selection) const {
    const Ahead& ahead = ahead_[headAt_.offset(sequence, layer, kvHead)];
    selection.predicted = ahead.predicted;
    if (ahead.predicted < 0) return;
    selection.used = ahead.used, selection.wasted = ahead.wasted, selection.late = ahead.late;
}

void CpuPrefixTransfers::passThrough(const KvHead& head, int complete) {
    for (const BlockId page : idsUpTo<BlockId>(complete)) loaded_ += !head.device.resident(page);
}

void CpuPrefixTransfers::account(LayerRecord& layer, bool waits) {
    kernels_.copy(copies_);
    copies_.clear();
    const std::int64_t loaded = loaded_ * pageBytes(), stored = stored_ * pageBytes(),
                       loadedNs = link_.link().transferNs(loaded);
    layer.h2dBlocks += loaded_;
    layer.h2dBytes += loaded;
    layer.d2hBlocks += stored_;
    layer.d2hBytes += stored;
    layer.transferNs += loadedNs + link_.link().transferNs(stored);
    if (waits && looksAhead_ &&
        loaded > 0) { // the loads queue behind pages that are still on their way for later layers
        const std::int64_t now = link_.modelled(now_());
        layer.exposedNs += link_.wait(now, link_.start(now, loaded).doneNs);
    } else if (waits) {
        layer.exposedNs += loadedNs;
    }
    loaded_ = stored_ = 0;
}

} // namespace kvscope
