// CPU backend: the pages of a prefix that waits on the host, and how long the modelled link takes for them.
#pragma once

#include "base/clock.h"
#include "base/indexed.h"
#include "core/kv/kv_cache.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link_timeline.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// The host has every complete page; slots on the device have some of them. An incomplete last page is on the device
/// until a clean forward completes it, takes no slot and is always a hit. Pages travel on demand, and then the
/// attention waits; or they are asked for before a forward begins, and travel while the layers before theirs compute.
/// Copies are made at once; the time at which they arrive is modelled. A forward calls, in this order: askAhead and
/// sendAhead for all layers; then in each layer arrive, fetch or passThrough for every KV head, and account.
class CpuPrefixTransfers {
public:
    /// The cache, whose layers offload, outlives the object. heads: of all sequences.
    /// @param now nanoseconds of a clock that only moves forward
    CpuPrefixTransfers(Kernels& kernels, KvCache& cache, const Link& link, const HeadExtents& heads,
                       std::function<std::int64_t()> now = steadyNowNs);

    /// Asks for pages, ascending and complete, to which a KV head will probably attend. While slots are left, first the
    /// pages that have a slot keep it, then the others get one in ascending order; the rest is not asked for.
    void askAhead(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<const std::int32_t> pages, int step);
    /// Sends the pages that askAhead asked for in a layer, as one transfer; it begins when the transfers sent before
    /// are over.
    void sendAhead(LayerId layer);
    /// The layer waits, in modelled time, for what was sent ahead for it.
    void arrive(LayerId layer, LayerRecord& record);

    /// A KV head attends to these pages, ascending; the first `complete` pages of its prefix are complete. Pages get
    /// slots as long as there are any, those that have one first, then the lower ones; the others pass through. hit:
    /// for each page, whether it was on the device; one that was sent ahead for this forward was not.
    void fetch(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<const std::int32_t> pages, int complete,
               int step, std::vector<std::uint8_t>& hit);
    /// A KV head attends to its whole prefix: pages without a slot pass through, and slots stay as they are.
    void passThrough(const KvHead& head, int complete);
    /// Notes that so many pages were completed; the next account() sends them to the host.
    void store(int pages) { stored_ += pages; }
    /// Makes the copies, and adds to `layer` what has travelled since the call before.
    /// @param waits whether the attention waits for what was fetched
    void account(LayerRecord& layer, bool waits);
    /// Writes to the fields predicted, used, wasted and late of the selection how many pages were asked for ahead for a
    /// KV head, and what came of them. Where none were, predicted is -1 and the other fields stay as they are.
    void recordAhead(LayerId layer, RowId sequence, KvHeadId kvHead, SelectionRecord& selection) const;

    /// Where a page lies: in its slot, else in the store.
    const float* page(const KvHead& head, BlockId id) const {
        const bool hasSlot = head.device.slots() > 0 && head.device.resident(id);
        return hasSlot ? head.device.block(id) : cache_.storeBlock(head, id);
    }

private:
    /// Pages that were asked for ahead for one KV head, and what came of them.
    struct Ahead {
        std::vector<std::int32_t> pages; // ascending
        Numbered<std::uint8_t> hit;      // whether each was on the device already
        int firstLoad = 0, loads = 0;    // place and number of its loads in the layer's transfer
        bool waiting = false;            // the layer has not attended yet
        int predicted = -1, used = 0, wasted = 0, late = 0;
    };
    /// The transfer of all pages of one layer.
    struct AheadTransfer {
        LinkTimeline::Transfer transfer;
        int pages = 0;
        bool queued = false;
    };

    Ahead& aheadOf(LayerId layer, RowId sequence, KvHeadId kvHead) {
        return ahead_[headAt_.offset(sequence, layer, kvHead)];
    }
    int giveSlots(KvHead& head, std::span<const std::int32_t> pages, int step);
    static void compare(Ahead& ahead, std::span<const std::int32_t> pages, NumberedSpan<std::uint8_t> hit);
    std::int64_t pageBytes() const { return cache_.layout().bytes(); }

    Kernels& kernels_;
    KvCache& cache_;
    LinkTimeline link_;
    const std::function<std::int64_t()> now_;
    const HeadExtents headAt_;
    std::vector<Ahead> ahead_;               // headAt_
    Numbered<AheadTransfer> aheadTransfers_; // [layer]
    bool looksAhead_ = false;                // something was ever asked for ahead
    std::vector<CopyItem> copies_;
    std::vector<std::int32_t> kept_; // pages that get slots
    std::vector<std::uint8_t> wasThere_;
    int loaded_ = 0, stored_ = 0;
};

} // namespace kvscope
