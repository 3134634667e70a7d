// CUDA backend: asks for LoSA's pages a step ahead, where the prefix waits on the host (fetch=ahead).
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/cuda/diffusion/denoiser_layer.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/diffusion/page_union.h"
#include "kernels/cuda/diffusion/prefix_pages.h"
#include "kernels/cuda/transfer/gather.h"

#include <functional>

namespace kvscope {

/// Between two forwards of a block it is known which tokens were just written, and the queries of these tokens change
/// most. Before the first layer a second stream scores, for one layer after the other, the pages that these tokens
/// would choose by their queries of the forward before, and gives slots to them; a third stream loads the pages, while
/// the layers before theirs compute. A layer waits twice: for its forecast, which reads what the layer overwrites, and
/// for its pages. Forwards in which no row asks have these kernels too: they find nothing to do. All of that becomes
/// part of the forward's graph where one is captured.
class CudaPrefixAhead {
public:
    /// What it uses of the engine; everything outlives it. launch: read at every launch
    struct Parts {
        const BatchLayout& layout;
        const cuda::Launch& launch;
        StageRanges& stages;
        const DenoiseReport& report; // on the device
        const RowTable& rows;
        const PerLayer<DenoiserLayer>& layers;
        const int block, pagesPerQuery;
        const int slots; // of a KV head
    };
    explicit CudaPrefixAhead(const Parts& parts) : p_(parts), layers_(int(p_.layers.size())) {}

    /// Asks the arena for memory.
    void plan(DeviceArena& arena);
    /// Makes streams and events.
    void open();

    /// Starts all forecasts and their transfers. ids: [rows*block] the forward's tokens, in device memory. pagesOf: a
    /// layer's arguments for giving slots
    void ask(const cuda::BlockRow* table, const std::int32_t* ids,
             const std::function<cuda::PrefixPagesArgs(LayerId)>& pagesOf) const;
    /// The layer may overwrite what its forecast has read, from the next launch on. @return how that is launched
    cuda::Launch joinForecast(LayerId layer) const { return join(layers_[layer].foreseen); }
    /// The layer's pages are there from the next launch on. @return how that is launched
    cuda::Launch joinPages(LayerId layer) const;
    /// What placePrefixPages compares.
    cuda::PrefixAhead aheadOf(LayerId layer) const;

private:
    /// Of one layer: device memory, and the ends of its work on the other streams.
    struct Layer {
        std::uint32_t *asked = nullptr, *travelled = nullptr;
        cuda::BlockMove* loads = nullptr;
        cuda::Event foreseen, loaded;
    };
    cuda::Launch on(const cuda::Stream& stream) const;
    cuda::Launch join(const cuda::Event& event) const;
    void foresee(LayerId layer, const cuda::PrefixPagesArgs& pages) const;
    void load(LayerId layer, const cuda::PrefixPagesArgs& pages) const;

    const Parts p_;
    PerLayer<Layer> layers_;
    // Device memory of one layer's forecast at a time, see PageUnionArgs, and of the tokens.
    __nv_bfloat16* q_ = nullptr;
    float* scores_ = nullptr;
    std::uint32_t *words_ = nullptr, *arrivals_ = nullptr, *foreseen_ = nullptr;
    std::int32_t *pages_ = nullptr, *count_ = nullptr, *missing_ = nullptr, *freeSlots_ = nullptr;
    std::int32_t* lastIds_ = nullptr;
    std::uint64_t* asking_ = nullptr;
    cuda::Event begins_;
    cuda::Stream forecasts_, transfers_;
};

} // namespace kvscope
