// CPU backend: moves blocks between the tiers, and computes how long the modelled link takes for that.
#pragma once

#include "base/clock.h"
#include "base/indexed.h"
#include "core/select/selector.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link_timeline.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// Copies are made at once; the time at which they arrive is modelled. A layer calls, in this order: fetchAhead, so
/// that blocks asked for ahead for later layers queue first; load; and fetchAhead again, for blocks that the selector
/// asks for after the attention.
class CpuTransfers {
public:
    /// The context and the selector must outlive this object.
    /// @param now nanoseconds of a clock that only moves forward
    CpuTransfers(const SelectorContext& context, Selector& selector, const Link& link,
                 std::function<std::int64_t()> now = steadyNowNs);

    /// Starts the transfers of `requests` and empties `requests`. All requests for one layer travel as one transfer.
    /// @param work the items of the layer that asks; every request is for the sequence of one of them
    void fetchAhead(std::span<const HeadStep> work, std::vector<PrefetchRequest>& requests, int step);

    /// Gives the blocks that the items want slots, writes the new tokens, loads missing blocks, lists the views of what
    /// is attended, and writes blocks that have just become full back to the host store. Fills the transfer fields of
    /// `layer`.
    void load(LayerId layerId, std::span<HeadStep> work, int step, LayerRecord& layer);

    /// Called after a prompt of `tokens` tokens. Puts into slots the blocks with which the method fills the device
    /// tier, and an incomplete last block. They have been on the device since they were computed, so nothing is
    /// transferred.
    void keepOnDevice(LayerId layerId, RowId sequence, int tokens, std::span<const PrefetchRequest> seeds);

    /// Adds to `layer` the blocks of a prompt of `tokens` tokens that were written to the host store while later pieces
    /// were computed. The link is busy in that time, and no time is exposed.
    void recordStored(LayerId layerId, int tokens, LayerRecord& layer) const;

private:
    /// Blocks on their way for one (sequence, layer, KV head).
    struct Ahead {
        std::vector<std::int32_t> blocks; // blocks that were asked for, ascending
        Numbered<std::uint8_t> hit;       // whether each was on the device already
        int firstLoad = 0, loads = 0;     // place and number of its loads in the layer's transfer
        bool waiting = false;
    };
    /// The transfer of all blocks of one layer.
    struct AheadTransfer {
        LinkTimeline::Transfer transfer;
        int blocks = 0;
        std::int64_t bytes = 0; // with a method's own device tier
        bool queued = false;
    };

    void start(std::span<const PrefetchRequest> requests);
    void admit(HeadStep& item, int step);
    float* placeOf(const HeadStep& item, BlockId id) const;
    void loadOwnTier(LayerId layerId, std::span<HeadStep> work, LayerRecord& layer);
    void copyBlocks(std::span<HeadStep> work, LayerRecord& layer);
    AheadTransfer arrive(LayerId layerId, std::span<HeadStep> work, LayerRecord& layer);
    static void compareWithAhead(HeadStep& item, Ahead& ahead, int arrived);
    Ahead& aheadOf(LayerId layerId, RowId sequence, KvHeadId kvHead) {
        return ahead_[headAt_.offset(sequence, layerId, kvHead)];
    }

    const SelectorContext& context_;
    Selector& selector_;
    const bool looksAhead_;
    LinkTimeline link_;
    const std::function<std::int64_t()> now_;
    std::vector<CopyItem> copies_;
    const HeadExtents headAt_;
    std::vector<Ahead> ahead_;               // headAt_, when the selector looks ahead
    Numbered<AheadTransfer> aheadTransfers_; // [layer], likewise
};

} // namespace kvscope
