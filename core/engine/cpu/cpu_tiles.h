// SparseD's part of a denoising forward on the CPU backend: it makes the masks of a block and attends under them.
#pragma once

#include "core/diffusion/tile_mask.h"
#include "core/engine/cpu/cpu_block_attention.h"
#include "core/model/model_config.h"
#include "core/select/denoising.h"

#include <functional>
#include <vector>

namespace kvscope {

/// One mask per layer and sequence. Every query head keeps tiles of its own, so the attention runs as if every query
/// head had a KV head of its own.
class CpuTiles {
public:
    /// Everything passed must outlive this object. Tiles of keys are KV blocks, of options.page tokens.
    CpuTiles(Kernels& kernels, const ModelConfig& config, const DenoiseOptions& options, int sequences);

    /// Rows of tiles of a block.
    static int rowsOf(const DenoiseOptions& options) { return (options.block + options.page - 1) / options.page; }

    /// Makes the mask of a block. q [block, queryHeads, dim]; viewsOf(KV head): the whole prefix, as blocks of a tile
    /// each; prefix: how many tokens it has.
    void make(LayerId layer, RowId sequence, const float* q, int prefix,
              const std::function<std::span<const KvBlockView>(KvHeadId kvHead)>& viewsOf);
    const TileMask& mask(LayerId layer, RowId sequence) const { return masks_[maskAt_.offset(sequence, layer)]; }
    /// Sets in `chosen`, [tiles], what any query head of the KV head's group keeps.
    void unite(LayerId layer, RowId sequence, KvHeadId kvHead, std::span<std::uint8_t> chosen) const;

    /// Empties the list that list() fills and run() works off.
    void clear();
    /// Adds the attention of a KV head's queries to the list. views: as for make; out and sums: as in
    /// CpuBlockAttention.
    void list(LayerId layer, RowId sequence, KvHeadId kvHead, const float* q, std::span<const KvBlockView> views,
              float* out, float* sums);
    void run();

private:
    /// How much attention the row's tokens give to each tile of keys, [tiles]: the sum over these tokens of a softmax
    /// over the prefix.
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
    std::size_t used_ = 0; // entries of views_ that are listed
    std::vector<CpuBlockAttention::Work> work_;
};

} // namespace kvscope
