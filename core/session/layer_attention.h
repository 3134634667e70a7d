// Selection, offloading and attention of one layer: what a method changes. Sparse and dense, decode and prefill.
#pragma once

#include "core/select/selector.h"
#include "core/session/engine.h"
#include "core/session/stage_clock.h"
#include "core/trace/oracle.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link_timeline.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Works on one session's cache, one layer at a time. All scratch memory is kept between calls.
///
/// What is attended is the selector's choice; transfers, attention, records and the oracle are the same for all
/// methods. In a layer with a sliding window only the blocks within it exist for the method: it chooses among those,
/// and a sink that has left the window is not attended.
class LayerAttention {
public:
    LayerAttention(const SelectorContext& context, std::unique_ptr<Selector> selector, const Link& link, bool oracle,
                   OracleObserver* observer = nullptr);

    /// What TokenRows must hold beyond queries, keys and values.
    Selector::Needs needs() const { return needs_; }

    /// One token per active sequence: appends it, selects, loads, attends. Fills `layer` and appends selections.
    void decode(int layerIndex, std::span<const ActiveSequence> active, const TokenRows& rows, int step,
                StageClock& clock, LayerRecord& layer, StepRecord& record);

    /// A chunk of consecutive prompt tokens of one sequence.
    void prefill(const PromptChunk& chunk, StageClock& clock, LayerRecord& layer);

    /// After the prompt of `tokens` tokens: the incomplete last block is where it was computed, in a device slot.
    void finishPrompt(int layerIndex, int sequence, int tokens);

    /// Bytes of a prompt that went to the host where the method keeps its own device tier.
    std::int64_t storedBytes(int layerIndex, int tokens) const {
        const bool own = spec_.ownDeviceTier && !spec_.dense && layerIndex >= spec_.denseLayers;
        return own ? selector_->storedBytes(layerIndex, tokens) : 0;
    }

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

    void offload(int layerIndex, std::span<HeadStep> work, int step, LayerRecord& layer);
    void admit(HeadStep& item, int step);
    void compareWithAhead(HeadStep& item, Ahead& ahead, int arrived) const;
    void fetchAhead(std::span<const HeadStep> work, int step);
    void sendAhead();
    void loadOwnTier(int layerIndex, std::span<HeadStep> work, LayerRecord& layer);
    void attend(std::span<HeadStep> work);
    void gatherTokens(HeadStep& item);
    void measureMass(int layerIndex, std::span<HeadStep> work, StepRecord& record, std::size_t firstSelection);
    void splitIntoUnits(HeadStep& item) const;
    void compareWithBest(int layerIndex, HeadStep& item, int step, SelectionRecord& selection);
    void recordSelections(int layerIndex, std::span<HeadStep> work, LayerRecord& layer, StepRecord& record) const;
    void place(HeadStep& item, int layerIndex, int position) const;
    void pointAt(HeadStep& item, const TokenRows& rows, std::size_t row) const;
    KvBlockView viewOf(const HeadStep& item, const float* block, std::int32_t id) const;
    const float* blockOf(HeadStep& item, std::int32_t id) const;
    void listAll(HeadStep& item) const;
    void attendItems(std::span<HeadStep> work, bool withLse, std::vector<float> HeadStep::*lse);
    void prefillFull(const PromptChunk& chunk);
    void prefillSparse(const PromptChunk& chunk, StageClock& clock, LayerRecord& layer);
    Ahead& aheadOf(int layerIndex, int sequence, int kvHead) {
        return ahead_[(std::size_t(sequence) * std::size_t(shape_.layers) + std::size_t(layerIndex)) *
                          std::size_t(shape_.kvHeads) +
                      std::size_t(kvHead)];
    }

    const SelectorContext context_;
    const std::unique_ptr<Selector> selector_;
    const Selector::Needs needs_;
    Kernels& kernels_;
    KvCache& cache_;
    const SelectionSpec& spec_;
    const KvShape shape_;
    const AttentionRules& rules_;
    const int group_;
    LinkTimeline link_;
    const bool oracle_;
    OracleObserver* const observer_;
    std::vector<HeadStep> work_; // decode: [sequence * kvHeads]; sparse prefill: grown to its chunk
    std::vector<AttentionItem> items_;
    std::vector<CopyItem> copies_;
    std::vector<PrefetchRequest> requests_;
    std::vector<Ahead> ahead_;                  // [sequence][layer][KV head], when the selector looks ahead
    std::vector<AheadTransfer> aheadTransfers_; // [layer]
    std::vector<float> massOut_, blockLse_, blockMass_;
    std::vector<std::int32_t> chosen_;
    std::vector<Origin> origins_;
    std::vector<std::vector<KvBlockView>> prefillViews_;
};

} // namespace kvscope
