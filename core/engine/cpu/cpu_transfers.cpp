#include "core/engine/cpu/cpu_transfers.h"

#include "core/engine/cpu/block_views.h"

#include <algorithm>
#include <optional>

namespace kvscope {

CpuTransfers::CpuTransfers(const SelectorContext& context, Selector& selector, const Link& link,
                           std::function<std::int64_t()> now)
    : context_(context), selector_(selector), looksAhead_(context.abilities.looksAhead()), link_(link),
      now_(std::move(now)), headAt_(context.heads()) {
    if (!looksAhead_) return;
    ahead_.resize(headAt_.size());
    aheadTransfers_.resize(context.shape.layers);
}

void CpuTransfers::fetchAhead(std::span<const HeadStep> work, std::vector<PrefetchRequest>& requests, int step) {
    if (requests.empty()) return;
    if (context_.spec.ownDeviceTier) { // the method moves its blocks itself; only the bytes are modelled
        for (const PrefetchRequest& request : requests) aheadTransfers_[index(request.layer)].bytes += request.bytes;
        start(requests);
        requests.clear();
        return;
    }
    copies_.clear();
    for (PrefetchRequest& request : requests) {
        const auto of = std::find_if(work.begin(), work.end(),
                                     [&](const HeadStep& item) { return item.sequence == request.sequence; });
        const BlockLayout& layout = context_.cache.layout();
        const bool later = request.layer > of->layer; // in this step, else in the next
        std::optional<BlockId> begins;
        if (later && layout.rowOf(of->position) == 0) begins = layout.blockOf(of->position);
        KvHead& head = context_.cache.head(request.sequence, request.layer, request.kvHead);
        Ahead& ahead = aheadOf(request.layer, request.sequence, request.kvHead);
        ahead.blocks.swap(request.blocks);
        ahead.hit.assign(ahead.blocks.size(), 1);
        ahead.loads = head.device.admit(ahead.blocks, begins, step, head.store, ahead.hit, copies_);
        ahead.waiting = true;
        AheadTransfer& transfer = aheadTransfers_[index(request.layer)];
        ahead.firstLoad = transfer.blocks;
        transfer.blocks += ahead.loads;
        transfer.bytes += ahead.loads * context_.cache.blockBytes();
    }
    context_.kernels.copy(copies_);
    start(requests);
    requests.clear();
}

/// Queues one transfer for each layer that `requests` name and that has none yet.
void CpuTransfers::start(std::span<const PrefetchRequest> requests) {
    for (const PrefetchRequest& request : requests) {
        AheadTransfer& transfer = aheadTransfers_[index(request.layer)];
        if (transfer.queued) continue;
        transfer.transfer = link_.start(link_.modelled(now_()), transfer.bytes);
        transfer.queued = true;
    }
}

void CpuTransfers::load(LayerId layerId, std::span<HeadStep> work, int step, LayerRecord& layer) {
    forEachItem(context_.kernels, work, [&](HeadStep& item) { admit(item, step); });
    if (context_.spec.ownDeviceTier && !work[0].dense) return loadOwnTier(layerId, work, layer);
    if (!context_.cache.offloaded(layerId)) return;
    AheadTransfer ahead;
    if (looksAhead_) ahead = arrive(layerId, work, layer);
    copyBlocks(work, layer);
    const std::int64_t blockBytes = context_.cache.blockBytes();
    const std::int64_t onDemand = layer.h2dBlocks * blockBytes, onDemandNs = link_.link().transferNs(onDemand);
    // On demand the attention waits for the whole transfer, which queues behind transfers that are still on their way.
    if (looksAhead_ && onDemand > 0) {
        const std::int64_t now = link_.modelled(now_());
        layer.exposedNs += link_.wait(now, link_.start(now, onDemand).doneNs);
    } else {
        layer.exposedNs += onDemandNs;
    }
    layer.h2dBlocks += ahead.blocks;
    layer.h2dBytes = layer.h2dBlocks * blockBytes;
    layer.d2hBytes = layer.d2hBlocks * blockBytes;
    layer.transferNs =
        ahead.transfer.doneNs - ahead.transfer.startNs + onDemandNs + link_.link().transferNs(layer.d2hBytes);
}

/// Gives the blocks that the item wants slots, writes the new token to its block, and lists what is attended.
void CpuTransfers::admit(HeadStep& item, int step) {
    const BlockLayout& layout = context_.cache.layout();
    const BlockId current = layout.blockOf(item.position);
    const int row = layout.rowOf(item.position);
    item.loads.hit.assign(item.wanted.size(), 1);
    item.loads.copies.clear();
    item.loads.count = 0;
    const bool offloaded = context_.cache.offloaded(item.layer);
    if (offloaded)
        item.loads.count = item.head->device.admit(item.wanted, row == 0 ? std::optional(current) : std::nullopt, step,
                                                   item.head->store, item.loads.hit, item.loads.copies);
    float* place = placeOf(item, current);
    const bool quantised = context_.cache.quantised();
    layout.write(quantised ? item.head->tail : place, row, item.rows.key, item.rows.value, item.rows.score);
    if (quantised && row + 1 == layout.blockSize) context_.cache.quantiseTail(*item.head, place);
    listViews(context_, item);
}

/// Where block `id` lies in a step: in its slot, or in the store of a layer that has no slots.
float* CpuTransfers::placeOf(const HeadStep& item, BlockId id) const {
    return context_.cache.offloaded(item.layer) ? item.head->device.block(id)
                                                : context_.cache.storeBlock(*item.head, id);
}

void CpuTransfers::loadOwnTier(LayerId layerId, std::span<HeadStep> work, LayerRecord& layer) {
    const Selector::Loads loads = selector_.load(work);
    layer.h2dBlocks = std::int32_t(loads.units);
    layer.h2dBytes = loads.bytes;
    layer.d2hBytes = loads.storedBytes;
    layer.transferNs = link_.link().transferNs(loads.storedBytes);
    std::int64_t onDemand = loads.bytes;
    if (looksAhead_) {
        AheadTransfer& transfer = aheadTransfers_[index(layerId)];
        if (transfer.queued) {
            layer.exposedNs += link_.wait(link_.modelled(now_()), transfer.transfer.doneNs);
            layer.transferNs += transfer.transfer.doneNs - transfer.transfer.startNs;
            onDemand -= transfer.bytes;
        }
        transfer = {};
    }
    const std::int64_t onDemandNs = link_.link().transferNs(onDemand);
    layer.exposedNs += onDemandNs;
    layer.transferNs += onDemandNs;
}

/// Waits, in modelled time, for the transfer that was sent ahead for this layer. @return that transfer; an empty one
/// where none was sent
CpuTransfers::AheadTransfer CpuTransfers::arrive(LayerId layerId, std::span<HeadStep> work, LayerRecord& layer) {
    AheadTransfer& transfer = aheadTransfers_[index(layerId)];
    const std::int64_t now = link_.modelled(now_());
    const int arrived = transfer.blocks - int(link_.missingBytes(transfer.transfer, now) / context_.cache.blockBytes());
    for (HeadStep& item : work) {
        Ahead& ahead = aheadOf(layerId, item.sequence, item.kvHead);
        if (ahead.waiting) compareWithAhead(item, ahead, arrived);
    }
    if (transfer.queued) layer.exposedNs += link_.wait(now, transfer.transfer.doneNs);
    return std::exchange(transfer, {});
}

/// Compares the blocks that were fetched ahead with the blocks that are wanted now. A block that travelled ahead does
/// not count as a hit.
/// @param arrived how many blocks of the layer's transfer have arrived
void CpuTransfers::compareWithAhead(HeadStep& item, Ahead& ahead, int arrived) {
    ahead.waiting = false;
    item.ahead.predicted = int(ahead.blocks.size());
    item.ahead.late = std::clamp(ahead.firstLoad + ahead.loads - arrived, 0, ahead.loads);
    auto selected = item.selected.begin();
    auto wanted = item.wanted.begin();
    for (std::size_t i = 0; i < ahead.blocks.size(); ++i) {
        const std::int32_t id = ahead.blocks[i];
        while (selected != item.selected.end() && selected->block < id) ++selected;
        const bool used = selected != item.selected.end() && selected->block == id;
        item.ahead.used += used ? 1 : 0;
        if (ahead.hit[i] != 0) continue;
        item.ahead.wasted += used ? 0 : 1;
        while (wanted != item.wanted.end() && *wanted < id) ++wanted;
        if (wanted != item.wanted.end() && *wanted == id) item.loads.hit[wanted - item.wanted.begin()] = 0;
    }
}

/// Copies missing blocks of the items to their slots, and blocks that have just become full to the host store. A full
/// block never changes, so it is copied once. Counts both in `layer`.
void CpuTransfers::copyBlocks(std::span<HeadStep> work, LayerRecord& layer) {
    copies_.clear();
    layer.h2dBlocks = 0;
    for (const HeadStep& item : work) {
        copies_.insert(copies_.end(), item.loads.copies.begin(), item.loads.copies.end());
        layer.h2dBlocks += item.loads.count;
    }
    for (const HeadStep& item : work) {
        if ((item.position + 1) % context_.spec.blockSize != 0) continue;
        const BlockId current = context_.cache.layout().blockOf(item.position);
        copies_.push_back({item.head->device.block(current), context_.cache.storeBlock(*item.head, current),
                           std::size_t(context_.cache.blockBytes())});
        ++layer.d2hBlocks;
    }
    context_.kernels.copy(copies_);
}

void CpuTransfers::keepOnDevice(LayerId layerId, RowId sequence, int tokens, std::span<const PrefetchRequest> seeds) {
    if (!context_.cache.offloaded(layerId)) return;
    const int size = context_.spec.blockSize;
    for (const KvHeadId g : context_.kvHeads()) {
        KvHead& head = context_.cache.head(sequence, layerId, g);
        std::vector<std::int32_t> blocks;
        for (const PrefetchRequest& seed : seeds)
            if (seed.kvHead == g) blocks = seed.blocks;
        const std::int32_t tail = tokens / size;
        if (tokens % size != 0 && (blocks.empty() || blocks.back() != tail)) blocks.push_back(tail);
        if (blocks.empty()) continue;
        Numbered<std::uint8_t> hit(blocks.size());
        copies_.clear();
        head.device.admit(blocks, std::nullopt, 0, head.store, hit, copies_);
        context_.kernels.copy(copies_);
    }
}

void CpuTransfers::recordStored(LayerId layerId, int tokens, LayerRecord& layer) const {
    if (context_.plans[layerId].ownTier) layer.d2hBytes += selector_.storedBytes(layerId, tokens);
    if (context_.cache.offloaded(layerId)) {
        const int blocks = tokens / context_.spec.blockSize * context_.shape.kvHeads;
        layer.d2hBlocks += blocks;
        layer.d2hBytes += blocks * context_.cache.blockBytes();
    }
    layer.transferNs = link_.link().transferNs(layer.d2hBytes);
}

} // namespace kvscope
