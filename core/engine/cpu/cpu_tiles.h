// SparseD's part of a denoising forward on the CPU backend: it makes the masks of a block and attends under them.
#pragma once

#include "core/diffusion/tile_mask.h"
#include "core/engine/cpu/cpu_block_attention.h"
#include "core/model/model_config.h"
#include "core/select/denoising.h"

#include <functional>
#include <vector>

namespace kvscope {

/// One mask per layer and sequence. Where a query head has a mask of its own, it is a KV head of its own to the
/// attention.
class CpuTiles {
public:
    /// Everything outlives the object. size: tokens of the KV blocks, which are the tiles of keys.
    CpuTiles(Kernels& kernels, const ModelConfig& config, const DenoiseOptions& options, int sequences);

    /// Rows of tiles of a block.
    static int rowsOf(const DenoiseOptions& options) { return (options.block + options.page - 1) / options.page; }

    /// Makes the mask of a block. q [block, queryHeads, dim]; viewsOf: all of the prefix of a KV head, as blocks of a
    /// tile each; prefix: its tokens.
    void make(LayerId layer, RowId sequence, const float* q, int prefix,
              const std::function<std::span<const KvBlockView>(KvHeadId kvHead)>& viewsOf);
    const TileMask& mask(LayerId layer, RowId sequence) const { return masks_[maskAt_.offset(sequence, layer)]; }
    /// Sets in `chosen`, [tiles], what any query head of the KV head's group keeps.
    void unite(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<std::uint8_t> chosen) const;

    /// Forgets the attention before.
    void clear();
    /// Lists the attention of a KV head's queries for run. Views as for make; out and sums as CpuBlockAttention has
    /// them.
    void list(LayerId layer, RowId sequence, KvHeadId kvHead, const float* q, std::span<const KvBlockView> views,
              float* out, float* sums);
    void run();

private:
    /// Mean attention of the row's tokens to each tile, times the tile's area. [tiles]
    std::vector<float> attention(const float* q, int head, int row, int prefix,
                                 std::span<const KvBlockView> views) const;

    Kernels& kernels_;
    const ModelConfig& config_;
    const DenoiseOptions& options_;
    const float scale_;
    CpuBlockAttention attention_;
    const Extents<RowId, LayerId> maskAt_;
    std::vector<TileMask> masks_;
    std::vector<std::vector<KvBlockView>> views_;
    std::size_t used_ = 0; // of them
    std::vector<CpuBlockAttention::Work> work_;
};

} // namespace kvscope
