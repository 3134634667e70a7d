// CPU backend: from the residual stream to queries, keys and values of one layer, and from the attention's output back.
#pragma once

#include "base/aligned_buffer.h"
#include "core/model/model.h"
#include "core/model/rope.h"
#include "core/select/selector.h"

#include <span>

namespace kvscope {

/// All scratch memory is taken once.
///
/// With latent attention the cache holds one key per token, [latent, rotated part]. Queries are taken into the latent
/// space (keyUp absorbed), attend there, and what they gather comes back through valueUp: at decode nothing is ever
/// expanded, and the methods see one KV head like any other.
class CpuProjections {
public:
    /// rows: most tokens at a time. The model must outlive this object.
    CpuProjections(Kernels& kernels, const Model& model, std::size_t rows, const Abilities& needs = {});

    /// Makes norm, projections and eviction scores of n rows of the residual stream, [n, hidden].
    void project(LayerId layer, const float* x, int n);
    /// Applies query and key norms and the rotation. rows: [n] rows of cos and sin.
    void rotate(LayerId layer, int n, std::span<const std::int32_t> rows, const float* cos, const float* sin);
    /// Makes the values of n rows of the residual stream alone. Without latent attention.
    void projectValues(LayerId layer, const float* x, int n);
    /// Adds the output projection of the attention's output to the residual stream.
    void finish(LayerId layer, float* x, int n);
    /// Writes that output projection to `out`, [n, hidden]. Without latent attention.
    void output(LayerId layer, float* out, int n);

    /// The arrays that the attention reads and writes.
    TokenRows rows();

private:
    void projectHeads(const LayerWeights& weights, const float* x, int n);
    void projectLatent(const LayerWeights& weights, const float* x, int n);
    void absorb(const LayerWeights& weights, int n);

    Kernels& kernels_;
    const Model& model_;
    const ModelConfig& config_;
    AlignedBuffer<float> q_, k_, v_, scores_, attended_;
    AlignedBuffer<float> plainQ_, queryLatent_, output_;   // latent attention only
    AlignedBuffer<float> input_, unrotatedQ_, unrotatedK_; // for methods that need them
};

} // namespace kvscope
