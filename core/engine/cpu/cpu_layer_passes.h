// CPU backend: everything of a layer that is not attention, and what comes before the first and after the last layer.
#pragma once

#include "core/engine/cpu/cpu_feed_forward.h"
#include "core/engine/cpu/cpu_projections.h"
#include "core/session/stage_clock.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Used by decode steps and by the reading of prompts alike, at most `rows` tokens at a time. All scratch memory is
/// taken once.
class CpuLayerPasses {
public:
    /// Everything outlives the object.
    CpuLayerPasses(Kernels& kernels, const Model& model, const RopeTables& rope, std::size_t rows,
                   const Abilities& needs, StageClock& clock);

    /// The residual stream of each token, [tokens, hidden].
    void embed(std::span<const std::int32_t> tokens, float* x);
    /// Rows of the rotary tables of the next n tokens, to be filled in before project.
    std::span<std::int32_t> ropeRows(std::size_t n) { return std::span(ropeRows_).first(n); }
    /// Queries, keys and values of n rows of the residual stream, [n, hidden].
    void project(int layerIndex, const float* x, int n, LayerRecord& layer);
    /// What project made, and where the attention's output goes.
    TokenRows rows() { return projections_.rows(); }
    /// Output projection and feed-forward of n rows, added to the residual stream.
    void finish(int layerIndex, float* x, int n, LayerRecord& layer);
    /// Logits [n, vocab] of n rows of the residual stream.
    void head(const float* x, int n, float* logits);

private:
    Kernels& kernels_;
    const Model& model_;
    const RopeTables& rope_;
    StageClock& clock_;
    CpuProjections projections_;
    CpuFeedForward feedForward_;
    std::vector<std::int32_t> ropeRows_;
};

} // namespace kvscope
