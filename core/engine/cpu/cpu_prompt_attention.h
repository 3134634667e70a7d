// Attention over a piece of a prompt in one layer on the CPU backend, and what the method makes of it.
#pragma once

#include "core/engine/cpu/cpu_transfers.h"
#include "core/engine/cpu/view_attention.h"
#include "core/session/stage_clock.h"

#include <vector>

namespace kvscope {

/// The pieces of one prompt's layer come in order; pieces of other prompts may come between them. All scratch memory is
/// kept between calls.
class CpuPromptAttention {
public:
    /// The context, the selector, the transfers and the clock outlive the object.
    CpuPromptAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers, StageClock& clock);

    /// Stores the keys and values of the piece, attends, and shows the piece to the selector.
    void read(const PromptChunk& chunk, LayerRecord& layer);
    /// After the layer's last piece of a prompt of `tokens` tokens: the selector makes what it needs of it, and the
    /// device tier begins with what was computed last.
    void finish(int layerIndex, int sequence, int tokens, LayerRecord& layer);

private:
    void appendToIndex(const PromptChunk& chunk);
    void store(const PromptChunk& chunk);
    void attendFully(const PromptChunk& chunk);
    void attendSparsely(const PromptChunk& chunk, LayerRecord& layer);
    void placeRows(const PromptChunk& chunk, std::size_t firstRow, std::size_t rows);

    const SelectorContext& context_;
    Selector& selector_;
    const Abilities needs_;
    CpuTransfers& transfers_;
    StageClock& clock_;
    ViewAttention attention_;
    std::vector<std::vector<KvBlockView>> views_; // [KV head]
    std::vector<HeadStep> items_;                 // sparse: [tokens attended together * kvHeads]
    std::vector<PrefetchRequest> seeds_;
};

} // namespace kvscope
