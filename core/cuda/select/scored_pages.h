// Scores pages by their digests, for the selectors of Quest and ArkVale on the GPU.
#pragma once

#include "core/cuda/device_selector.h"
#include "kernels/cuda/methods/pages.h"

namespace kvscope {

class ScoredPages {
public:
    /// shared: number of KV heads that share a page set. The context must outlive this object.
    ScoredPages(const DeviceSelectorContext& context, bool cuboidMean, int shared, cuda::PageScore score)
        : context_(context), cuboidMean_(cuboidMean), score_(score), shared_(shared), layers_(context.config.layers) {}

    void plan(DeviceArena& arena);
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) const;
    void append(const DeviceStep& step) const;
    /// Scores the pages of a layer: by the queries of a step; by queries [rows, queryHeads*dim] that are guessed for a
    /// layer without the step's token; or by the query [queryHeads*dim] of one sequence at a position.
    void score(const DeviceStep& step) const;
    void scoreAhead(const DeviceStep& step, LayerId target, const __nv_bfloat16* q) const;
    void scoreAt(LayerId layer, RowId sequence, int position, const __nv_bfloat16* q) const;

    int sets() const { return context_.shape.kvHeads / shared_; }
    const float* scores() const { return scores_; } // [rows, sets() or queryHeads, maxBlocks]

private:
    struct Layer {
        __half* digests = nullptr;         // [blocks, 2, dim]
        __nv_bfloat16* openPage = nullptr; // [rows*kvHeads, blockSize, dim]
    };
    cuda::PageDigests digestsOf(LayerId layer) const {
        const Layer& of = layers_[layer];
        return {context_.shape, cuboidMean_, of.digests, of.openPage, context_.tables.blockFirst};
    }
    cuda::PageScoreArgs scoreArgs(LayerId layer) const;
    cuda::PageScoreArgs stepArgs(const DeviceStep& step, LayerId layer, const __nv_bfloat16* q) const;

    const DeviceSelectorContext& context_;
    const bool cuboidMean_;
    const cuda::PageScore score_;
    const int shared_;
    PerLayer<Layer> layers_;
    float* scores_ = nullptr;
};

} // namespace kvscope
