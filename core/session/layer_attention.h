// Selection, offloading and attention of one layer: what a method changes. Sparse and dense, decode and prefill.
#pragma once

#include "core/kv/kv_cache.h"
#include "core/session/engine.h"
#include "core/session/stage_clock.h"
#include "core/trace/oracle.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Projections of n tokens, one row each. Queries and keys are rotated.
struct TokenRows {
    const float* q = nullptr;     // [n, queryHeads*dim]
    const float* k = nullptr;     // [n, kvHeads*dim]
    const float* v = nullptr;     // [n, kvHeads*dim]; null when values are the beginning of the keys
    const float* score = nullptr; // [n, kvHeads] eviction scores; null without an eviction head
    float* out = nullptr;         // [n, queryHeads*valueDim] attention output
};

/// What the model asks of the attention, whatever the method.
struct AttentionRules {
    int queryHeads = 0;
    float scale = 1;          // logits = scale * q.k
    std::vector<int> windows; // [layer] tokens a query sees, itself included, 0: all; empty: all layers see all
    int windowOf(int layer) const { return windows.empty() ? 0 : windows[std::size_t(layer)]; }
};

/// Works on one session's cache, one layer at a time. All scratch memory is kept between calls.
///
/// In a layer with a sliding window only the blocks within it exist for the method: it chooses among those, and a sink
/// that has left the window is not attended.
class LayerAttention {
public:
    LayerAttention(Kernels& kernels, KvCache& cache, const SelectionSpec& spec, const KvShape& shape,
                   const AttentionRules& rules, const Link& link, int sequences, bool oracle,
                   OracleObserver* observer = nullptr);

    /// One token per active sequence: appends it, selects, loads, attends. Fills `layer` and appends selections.
    void decode(int layerIndex, std::span<const ActiveSequence> active, const TokenRows& rows, int step,
                StageClock& clock, LayerRecord& layer, StepRecord& record);

    /// A chunk of n consecutive prompt tokens of one sequence, starting at `first`.
    void prefill(int layerIndex, int sequence, int first, int n, const TokenRows& rows, StageClock& clock,
                 LayerRecord& layer);

    /// After the prompt: the incomplete last block is where it was computed, in a device slot.
    void keepTail(int layerIndex, int sequence, int tokens);

private:
    struct Work { // one (active sequence, KV head)
        KvHead* head = nullptr;
        const float *q = nullptr, *key = nullptr, *value = nullptr;
        float score = 0;
        float* out = nullptr;
        int sequence = 0, kvHead = 0, position = 0;
        int firstToken = 0, firstBlock = 0; // the oldest a sliding window shows
        bool dense = false;
        std::vector<float> windowScores, queryAware, queryAgnostic, lse, fullLse;
        std::vector<SelectedBlock> selected;
        std::vector<std::int32_t> wanted;
        std::vector<std::uint8_t> hit;
        std::vector<CopyItem> copies;
        std::vector<KvBlockView> views;
        int loads = 0;
    };

    void appendIndex(std::span<Work> work);
    void scoreBlocks(std::span<Work> work);
    void choose(Work& work) const;
    void offload(int layerIndex, std::span<Work> work, int step, LayerRecord& layer);
    void attend(std::span<Work> work);
    void measureMass(int layerIndex, std::span<Work> work, StepRecord& record, std::size_t firstSelection);
    void observeBest(int layerIndex, Work& work, int step);
    void recordSelections(int layerIndex, std::span<Work> work, LayerRecord& layer, StepRecord& record) const;
    void place(Work& work, int layerIndex, int position) const;
    KvBlockView viewOf(const Work& work, const float* block, std::int32_t id) const;
    void listAll(Work& work) const;
    void attendItems(std::span<Work> work, bool withLse, std::vector<float> Work::*lse);
    void prefillFull(int layerIndex, int sequence, int first, int n, const TokenRows& rows);
    void prefillSparse(int layerIndex, int sequence, int first, int n, const TokenRows& rows, StageClock& clock,
                       LayerRecord& layer);

    Kernels& kernels_;
    KvCache& cache_;
    const SelectionSpec spec_;
    const KvShape shape_;
    const AttentionRules rules_;
    const int group_;
    const Link link_;
    const bool oracle_;
    OracleObserver* const observer_;
    std::vector<Work> work_; // decode: [sequence * kvHeads]; sparse prefill: grown to its chunk
    std::vector<AttentionItem> items_;
    std::vector<GroupScoreItem> groupItems_;
    std::vector<RangeBoundItem> rangeItems_;
    std::vector<CopyItem> copies_;
    std::vector<float> massOut_, blockLse_, blockMass_;
    std::vector<std::int32_t> chosen_;
    std::vector<Origin> origins_;
    std::vector<std::vector<KvBlockView>> prefillViews_;
};

} // namespace kvscope
