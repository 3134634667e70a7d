// CPU backend: everything of a layer but the attention, and what comes before the first layer and after the last.
#pragma once

#include "base/extents.h"
#include "base/ids.h"
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
    /// Called before project(): says that row `row` is rotated by row `at` of `tables`. Sequences may have tables of
    /// their own.
    void rotateAs(int row, const RopeTables& tables, int at);
    /// Makes queries, keys and values of n rows of the residual stream, [n, hidden].
    void project(LayerId layerId, const float* x, int n, LayerRecord& layer);
    /// The queries, keys and values that project made, and the place for the attention's output.
    TokenRows rows() { return projections_.rows(); }
    /// Adds the output projection and then the feed-forward of n rows to the residual stream.
    void finish(LayerId layerId, float* x, int n, LayerRecord& layer);
    /// Makes the values of n rows of the residual stream alone; they are in rows().
    void projectValues(LayerId layerId, const float* x, int n, LayerRecord& layer);
    /// Writes what finish would add to the residual stream, in two parts [n, hidden]: first the output projection, then
    /// the feed-forward of the stream x, to which that was added.
    void outputOf(LayerId layerId, int n, float* out, LayerRecord& layer);
    void feedForwardOf(LayerId layerId, const float* x, int n, float* out, LayerRecord& layer);
    /// Makes the logits [n, vocab] of n rows of the residual stream.
    void head(const float* x, int n, float* logits);

private:
    Kernels& kernels_;
    const Model& model_;
    StageClock& clock_;
    CpuProjections projections_;
    CpuFeedForward feedForward_;
    const Extents<int, int> pairAt_; // [rows, rotated channels / 2]
    AlignedBuffer<float> cos_, sin_;
    std::vector<std::int32_t> rowIds_;
};

} // namespace kvscope
