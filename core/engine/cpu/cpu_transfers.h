// What moves between the tiers of the CPU backend, and how long the modelled link takes for it.
#pragma once

#include "base/clock.h"
#include "core/select/selector.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link_timeline.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// Copies are made at once; when they arrive is modelled. A layer calls, in this order: fetchAhead (what was asked for
/// ahead for later layers queues first), load, and fetchAhead again (what the selector asks for after its attention).
class CpuTransfers {
public:
    /// The context and the selector outlive the object.
    /// @param now nanoseconds of a clock that only moves forward
    CpuTransfers(const SelectorContext& context, Selector& selector, const Link& link,
                 std::function<std::int64_t()> now = steadyNowNs);

    /// Sends `requests` on their way and empties them. All requests for one layer travel as one transfer.
    /// @param work the items of the layer that asks, with which every request shares a sequence
    void fetchAhead(std::span<const HeadStep> work, std::vector<PrefetchRequest>& requests, int step);

    /// Gives the blocks that the items want device slots, writes the new tokens, loads what is missing and lists the
    /// views of what is attended; a block that has just become full goes to the store. Fills the transfer fields of
    /// `layer`.
    void load(int layerIndex, std::span<HeadStep> work, int step, LayerRecord& layer);

    /// After a prompt of `tokens` tokens: the blocks that the method seeds the device tier with, and an incomplete last
    /// block, are in device slots since they were computed; nothing is transferred.
    void keepOnDevice(int layerIndex, int sequence, int tokens, std::span<const PrefetchRequest> seeds);

    /// Adds to `layer` what a prompt of `tokens` tokens stored on the host while later pieces were computed: the link
    /// is busy, nothing is exposed.
    void recordStored(int layerIndex, int tokens, LayerRecord& layer) const;

private:
    /// Blocks on their way for one (sequence, layer, KV head).
    struct Ahead {
        std::vector<std::int32_t> blocks; // asked for, ascending
        std::vector<std::uint8_t> hit;    // were on the device already
        int firstLoad = 0, loads = 0;     // in the layer's transfer
        bool waiting = false;
    };
    /// All of one layer travel as one transfer.
    struct AheadTransfer {
        LinkTimeline::Transfer transfer;
        int blocks = 0;
        std::int64_t bytes = 0; // of a method with its own device tier
        bool queued = false;
    };

    void start(std::span<const PrefetchRequest> requests);
    void admit(HeadStep& item, int step);
    void loadOwnTier(int layerIndex, std::span<HeadStep> work, LayerRecord& layer);
    void copyBlocks(std::span<HeadStep> work, LayerRecord& layer);
    AheadTransfer arrive(int layerIndex, std::span<HeadStep> work, LayerRecord& layer);
    static void compareWithAhead(HeadStep& item, Ahead& ahead, int arrived);
    Ahead& aheadOf(int layerIndex, int sequence, int kvHead) {
        return ahead_[(std::size_t(sequence) * std::size_t(context_.shape.layers) + std::size_t(layerIndex)) *
                          std::size_t(context_.shape.kvHeads) +
                      std::size_t(kvHead)];
    }

    const SelectorContext& context_;
    Selector& selector_;
    const bool looksAhead_;
    LinkTimeline link_;
    const std::function<std::int64_t()> now_;
    std::vector<CopyItem> copies_;
    std::vector<Ahead> ahead_;                  // [sequence][layer][KV head], when the selector looks ahead
    std::vector<AheadTransfer> aheadTransfers_; // [layer], likewise
};

} // namespace kvscope
