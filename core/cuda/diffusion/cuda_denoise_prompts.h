// Reads the prompts of a block-diffusion session on a GPU, by whole blocks: every token sees its own block and the
// blocks before it.
#pragma once

#include "core/cuda/diffusion/cuda_prefix.h"
#include "core/cuda/diffusion/denoiser_layer.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/prompt_piece.h"
#include "core/session/denoise_engine.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cstdint>
#include <stop_token>
#include <vector>

namespace kvscope {

/// Reads one prompt after the other, in each layer by layer, in each layer piece by piece.
class CudaDenoisePrompts {
public:
    /// What reading uses of the engine; everything outlives the reader.
    struct Parts {
        const DeviceModel& model;
        IndexedSpan<RowId, const std::vector<std::int32_t>> prompts;
        const int block; // tokens
        const PiecePlacer placer;
        const PerLayer<DenoiserLayer>& layers;
        const CudaPrefix* const prefix; // null: keys and values stay in the layers' memory
        const GpuClock& clock;
        GpuTrace* const trace; // null: nobody records
    };
    explicit CudaDenoisePrompts(const Parts& parts) : p_(parts) {}

    /// Asks the arena for memory for prompts of at most `longest` tokens.
    void plan(DeviceArena& arena, int longest);
    /// Host memory that the GPU reaches, at least one mark; used while a prompt is read, and free otherwise.
    std::uint64_t* marks() const { return marks_; }
    /// As DenoiseEngine::prefill.
    void read(StepRecord& record, const Progress& progress, const std::stop_token& stop);

private:
    int tokensOf(RowId sequence) const;
    int pieceTokens() const;
    void readPrompt(RowId sequence, StepRecord& record, double& done, double all, const Progress& progress,
                    const std::stop_token& stop);
    void readPiece(RowId sequence, LayerId layer, int first, int n, LayerRecord& out);
    void storeLayer(RowId sequence, LayerId layer, LayerRecord& out);
    void addTimes(LayerRecord& out) const;

    const Parts p_;
    // Device memory of the longest prompt.
    cuda::BlockRow* table_ = nullptr; // [blocks]
    std::int32_t* ids_ = nullptr;     // [tokens]
    float* x_ = nullptr;              // [tokens, hidden] the residual stream
    // Host memory that the GPU reaches.
    std::uint64_t* marks_ = nullptr; // [DenoiseReport::kMarks]
};

} // namespace kvscope
