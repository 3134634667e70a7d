// How prompts are read on the CPU backend: prompt by prompt or in turns, in each all layers, in each layer all pieces.
#pragma once

#include "base/progress.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/cpu/cpu_prompt_attention.h"
#include "core/engine/prompt_cursor.h"

#include <cstdint>
#include <stop_token>
#include <vector>

namespace kvscope {

/// Tokens of a piece: they are projected and attended together. It fills the products' tiles and bounds the scratch
/// memory. Pieces begin at multiples of it whoever reads in turns, so that every sum is the same.
inline constexpr int kPromptPieceTokens = 512;

/// Reads the prompts of a session's rows. A prompt may stop anywhere and go on later; what is between its pieces (its
/// residual stream, and what the selector keeps of it) belongs to its row, so that prompts read in turns give the same
/// bits as one after the other.
class CpuPromptReader {
public:
    /// Everything outlives the object.
    CpuPromptReader(CpuLayerPasses& passes, CpuPromptAttention& attention, const Model& model, const RopeTables& rope,
                    const std::vector<std::vector<std::int32_t>>& prompts, StageClock& clock);

    /// Reads the row's prompt on from where it stands, up to but without `until`, and adds the times to `record`, which
    /// has its layers. When all is read, the residual stream of the last token goes to lastToken [hidden].
    /// @param progress told the share of all prompts that is read
    /// @return whether all of the prompt is read. @throws Error(Cancelled) between two pieces
    bool read(int row, PromptCursor until, float* lastToken, StepRecord& record, const Progress& progress,
              const std::stop_token& stop);

    /// Where the row's prompt stands: the piece that is read next.
    PromptCursor at(int row) const { return lanes_[std::size_t(row)].at; }

private:
    /// One prompt that is being read.
    struct Lane {
        PromptCursor at;
        AlignedBuffer<float> x; // [tokens, hidden] residual stream; empty before the first piece and after the last
    };
    void readPiece(int row, Lane& lane, LayerRecord& layer);

    CpuLayerPasses& passes_;
    CpuPromptAttention& attention_;
    const ModelConfig& config_;
    const RopeTables& rope_;
    const std::vector<std::vector<std::int32_t>>& prompts_;
    StageClock& clock_;
    std::vector<Lane> lanes_;            // [row]
    std::int64_t tokens_ = 0, done_ = 0; // tokens times layers: of all prompts; read so far
};

} // namespace kvscope
