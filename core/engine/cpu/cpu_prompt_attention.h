// CPU backend: attention over a piece of a prompt in one layer, and giving the piece to the method.
#pragma once

#include "core/engine/cpu/cpu_transfers.h"
#include "core/engine/cpu/view_attention.h"
#include "core/select/prompt_attention.h"
#include "core/session/stage_clock.h"

#include <vector>

namespace kvscope {

/// The pieces of a prompt come in order within a layer; pieces of other prompts may come between them. All scratch
/// memory is kept between calls.
class CpuPromptAttention {
public:
    /// The context, the selector, the transfers and the clock must outlive this object.
    CpuPromptAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers, StageClock& clock);

    /// Stores the keys and values of the piece, attends, and gives the piece to the selector.
    void read(const PromptPiece& piece, LayerRecord& layer);
    /// Called after the last piece of a prompt of `tokens` tokens in a layer. The selector makes what it needs of the
    /// prompt, and the device tier gets its first blocks.
    void finish(LayerId layerId, RowId sequence, int tokens, LayerRecord& layer);

private:
    void appendToIndex(const PromptPiece& piece);
    void store(const PromptPiece& piece);
    void attendSparsely(const PromptPiece& piece, LayerRecord& layer);
    void placeRows(const PromptPiece& piece, int firstRow, int rows);

    const SelectorContext& context_;
    Selector& selector_;
    const Abilities needs_;
    CpuTransfers& transfers_;
    StageClock& clock_;
    select::PromptAttention full_;
    ViewAttention attention_;
    std::vector<HeadStep> items_; // sparse: [tokens attended together * kvHeads]
    std::vector<PrefetchRequest> seeds_;
};

} // namespace kvscope
