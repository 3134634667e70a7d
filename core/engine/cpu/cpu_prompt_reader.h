// CPU backend: reads prompts, one after another or in turns. A prompt is read layer by layer, and in each layer piece
// by piece.
#pragma once

#include "base/progress.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/cpu/cpu_prompt_attention.h"
#include "core/engine/prompt_cursor.h"

#include <cstdint>
#include <stop_token>
#include <vector>

namespace kvscope {

/// Tokens of a piece, which are projected and attended together. So many tokens fill the tiles of the products, and the
/// number bounds the scratch memory. Pieces always begin at multiples of this number, so that every sum is the same
/// whether prompts are read in turns or not.
inline constexpr int kPromptPieceTokens = 512;

/// Reads the prompts of a session's rows. Reading may stop after any piece of a prompt and go on later. What is kept
/// between two pieces (the prompt's residual stream, and what the selector keeps of the prompt) belongs to the row, so
/// that prompts read in turns give the same bits as prompts read one after the other.
class CpuPromptReader {
public:
    /// Everything passed must outlive this object.
    CpuPromptReader(CpuLayerPasses& passes, CpuPromptAttention& attention, const Model& model, const RopeTables& rope,
                    const std::vector<std::vector<std::int32_t>>& prompts, StageClock& clock);

    /// Goes on reading the row's prompt up to the piece before `until`, and adds the times to `record`, whose layers
    /// have their size already. When the whole prompt is read, writes the residual stream of the last token to
    /// lastToken [hidden].
    /// @param progress told the share of all prompts that is read
    /// @return whether all of the prompt is read. @throws Error(Cancelled) between two pieces
    bool read(RowId row, PromptCursor until, float* lastToken, StepRecord& record, const Progress& progress,
              const std::stop_token& stop);
    /// Reads the prompt in chunks: takes every piece before the piece numbered `until` through all layers, one piece
    /// after the other. A prompt that was begun in one of the two ways goes on in that way.
    bool readChunk(RowId row, int until, float* lastToken, StepRecord& record, const Progress& progress,
                   const std::stop_token& stop);

    /// The piece of the row's prompt that is read next.
    PromptCursor at(RowId row) const { return readings_[index(row)].at; }

private:
    /// How far one prompt has been read.
    struct PromptReading {
        PromptCursor at;
        AlignedBuffer<float> x; // [tokens, hidden] residual stream; empty before the first piece and after the last
    };
    int piecesOf(RowId row) const;
    /// The extents of a prompt's residual stream, [tokens, hidden].
    Extents<int, int> streamOf(RowId row) const {
        return Extents<int, int>(int(prompts_[index(row)].size()), config_.hidden);
    }
    void begin(RowId row, PromptReading& reading, StepRecord& record);
    void finish(RowId row, PromptReading& reading, float* lastToken);
    void readPiece(RowId row, PromptReading& reading, PromptCursor at, LayerRecord& layer);

    CpuLayerPasses& passes_;
    CpuPromptAttention& attention_;
    const ModelConfig& config_;
    const RopeTables& rope_;
    const std::vector<std::vector<std::int32_t>>& prompts_;
    StageClock& clock_;
    std::vector<PromptReading> readings_; // [row]
    std::int64_t tokens_ = 0, done_ = 0;  // tokens times layers: of all prompts; of what has been read
};

} // namespace kvscope
