#include "core/plan/model_limits.h"

#include "kernels/cuda/device/kv_shape.h"
#include "kernels/cuda/device/latent_shape.h"

#include <fmt/format.h>

namespace kvscope {

std::string gpuProblem(const ModelConfig& c) {
    if (c.latent) {
        const LatentAttention& latent = *c.latent;
        if (!cuda::hasLatentKernels(latent.rank + latent.ropeDim, latent.rank))
            return fmt::format("the GPU backend has latent attention of 512 + 64 rotated channels and of 256 + 32, not "
                               "of {} + {}",
                               latent.rank, latent.ropeDim);
        if (c.queryHeads > cuda::kMostLatentHeads)
            return fmt::format("the GPU backend has latent attention of at most {} heads, not {}",
                               cuda::kMostLatentHeads, c.queryHeads);
        if (latent.nopeDim % 32 != 0 || latent.valueDim % 32 != 0 || latent.queryRank % 32 != 0)
            return fmt::format("the GPU backend needs latent attention's widths to be multiples of 32; this model has "
                               "{}, {} and {}",
                               latent.nopeDim, latent.valueDim, latent.queryRank);
    } else if (c.headDim != 64 && c.headDim != 128) {
        return fmt::format("the GPU backend needs heads of 64 or 128 channels, not {}", c.headDim);
    } else if (c.group() > cuda::kMostGroup) {
        return fmt::format("the GPU backend serves at most {} query heads with a KV head, not {}", cuda::kMostGroup,
                           c.group());
    }
    if (!c.latent && c.rope.dim != c.headDim && c.rope.interleaved)
        return "the GPU backend rotates parts of heads by halves alone, and this model's pairs are neighbours";
    if (c.blockIndexer && (c.blockIndexer->dim % 8 != 0 || c.blockIndexer->heads * c.blockIndexer->dim > 8192))
        return fmt::format(
            "the GPU backend needs block indexers whose heads have a multiple of 8 channels, 8192 in all "
            "at most; this model has {} heads of {}",
            c.blockIndexer->heads, c.blockIndexer->dim);
    if (c.indexer && (c.indexer->dim % 32 != 0 || c.indexer->heads * c.indexer->dim > 8192))
        return fmt::format("the GPU backend needs lightning indexers whose heads have a multiple of 32 channels, 8192 "
                           "in all at most; this model has {} heads of {}",
                           c.indexer->heads, c.indexer->dim);
    if (c.experts && (c.experts->count > 1024 || c.experts->used > 32 || c.experts->groups > 32))
        return fmt::format(
            "the GPU backend chooses at most 32 of 1,024 experts in 32 groups; this model {} of {} in {}",
            c.experts->used, c.experts->count, c.experts->groups);
    if (c.experts && (c.experts->width % 32 != 0 || c.experts->sharedWidth % 32 != 0))
        return fmt::format("the GPU backend needs experts of multiples of 32 channels; this model has {} and {}",
                           c.experts->width, c.experts->sharedWidth);
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
