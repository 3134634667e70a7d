#include "core/cuda/model_limits.h"

#include <fmt/format.h>

namespace kvscope {

std::string gpuProblem(const ModelConfig& c) {
    if (c.latent) return "the GPU backend has no latent attention yet";
    if (c.experts) return "the GPU backend has no mixtures of experts yet";
    if (c.rope.interleaved) return "the GPU backend does not rotate neighbouring channels";
    if (c.headDim != 64 && c.headDim != 128)
        return fmt::format("the GPU backend needs heads of 64 or 128 channels, not {}", c.headDim);
    if (c.group() > 32)
        return fmt::format("the GPU backend serves at most 32 query heads with a KV head, not {}", c.group());
    if (c.hidden % 32 != 0 || c.ffn % 32 != 0)
        return fmt::format("the GPU backend needs layer widths that are multiples of 32; this model has {} and {}",
                           c.hidden, c.ffn);
    return {};
}

std::string gpuProblem(const Model& model) {
    for (int i = 0; i < model.config().layers; ++i) {
        const FeedForwardWeights& mlp = model.layer(i).mlp;
        if (!mlp.gateBias.empty() || !mlp.upBias.empty() || !mlp.downBias.empty())
            return "the GPU backend has no feed-forward biases";
    }
    return gpuProblem(model.config());
}

} // namespace kvscope
