// SparseD's part of a forward over a canvas on the CPU backend: it makes the masks once in a run and attends under
// them.
#pragma once

#include "core/diffusion/tile_mask.h"
#include "core/engine/cpu/cpu_block_attention.h"
#include "core/model/model_config.h"
#include "core/select/canvas.h"

#include <span>
#include <vector>

namespace kvscope {

/// One mask per layer and sequence, over prompt and canvas. Every query head keeps tiles of its own, so the attention
/// runs as if every query head had a KV head of its own.
class CpuCanvasTiles {
public:
    /// Everything passed must outlive this object. prompts, tokens: [sequence] the tokens of the prompt; those of
    /// prompt and canvas together.
    CpuCanvasTiles(Kernels& kernels, const ModelConfig& config, const CanvasOptions& options,
                   std::span<const int> prompts, std::span<const int> tokens);

    /// Makes a sequence's mask. q [tokens, queryHeads, dim] of all its tokens; views: [KV head] all of its keys, as
    /// blocks of a tile each.
    void make(LayerId layer, RowId sequence, const float* q, std::span<const std::vector<KvBlockView>> views);
    /// All tokens attend under the mask. q and views as for make; out [tokens, queryHeads, valueDim], sums [tokens,
    /// queryHeads].
    void attend(LayerId layer, RowId sequence, const float* q, std::span<const std::vector<KvBlockView>> views,
                float* out, float* sums);
    const TileMask& mask(LayerId layer, RowId sequence) const { return masks_[maskAt_.offset(sequence, layer)]; }
    /// The tiles that any query head of the KV head's group keeps for any row, ascending.
    std::vector<std::int32_t> united(LayerId layer, RowId sequence, KvHeadId kvHead) const;
    /// Bytes of the masks and of the copies of queries and outputs that the attention makes.
    static std::int64_t bytes(const ModelConfig& config, const CanvasOptions& options, std::span<const int> tokens);

private:
    struct Shares {
        std::vector<float> all;       // [tiles] attention of a row's tokens, by a softmax over all keys
        std::vector<float> generated; // of the generated tiles, by a softmax over their keys
    };
    Shares sharesOf(const float* q, int head, int row, RowId sequence, std::span<const KvBlockView> views) const;
    int firstGenerated(RowId sequence) const {
        return firstGeneratedTile(prompts_[index(sequence)], tokens_[index(sequence)], options_.tile);
    }

    Kernels& kernels_;
    const ModelConfig& config_;
    const CanvasOptions& options_;
    const std::vector<int> prompts_, tokens_;
    const float scale_;
    CpuBlockAttention attention_;
    const Extents<RowId, LayerId> maskAt_;
    std::vector<TileMask> masks_;
    std::vector<std::vector<KvBlockView>> views_; // [query head, row]
    std::vector<CpuBlockAttention::Work> work_;
};

} // namespace kvscope
