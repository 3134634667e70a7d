// CPU backend: everything of a layer but the attention, and what comes before the first layer and after the last.
#pragma once

#include "core/engine/cpu/cpu_feed_forward.h"
#include "core/engine/cpu/cpu_projections.h"
#include "core/session/stage_clock.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Decode steps and prompt reading both use this, with at most `rows` tokens at a time. All scratch memory is taken
/// once.
class CpuLayerPasses {
public:
    /// Everything passed must outlive this object.
    CpuLayerPasses(Kernels& kernels, const Model& model, std::size_t rows, const Abilities& needs, StageClock& clock);

    /// Writes the embeddings of tokens to the residual stream [tokens, hidden].
    void embed(std::span<const std::int32_t> tokens, float* x);
    /// Before project: project rotates its row `row` as `tables` say in their row `at`. Sequences may have tables of
    /// their own.
    void rotateAs(std::size_t row, const RopeTables& tables, int at);
    /// Makes queries, keys and values of n rows of the residual stream, [n, hidden].
    void project(int layerIndex, const float* x, int n, LayerRecord& layer);
    /// The queries, keys and values that project made, and the place for the attention's output.
    TokenRows rows() { return projections_.rows(); }
    /// Adds the output projection and then the feed-forward of n rows to the residual stream.
    void finish(int layerIndex, float* x, int n, LayerRecord& layer);
    /// Makes the logits [n, vocab] of n rows of the residual stream.
    void head(const float* x, int n, float* logits);

private:
    Kernels& kernels_;
    const Model& model_;
    StageClock& clock_;
    CpuProjections projections_;
    CpuFeedForward feedForward_;
    AlignedBuffer<float> cos_, sin_; // [rows, rotated channels / 2]
    std::vector<std::int32_t> rowIds_;
};

} // namespace kvscope
