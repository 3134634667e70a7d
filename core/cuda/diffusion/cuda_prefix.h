// CUDA backend: the pages of a prefix that waits on the host, for sessions that denoise blocks.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/cuda/diffusion/cuda_prefix_ahead.h"
#include "core/cuda/diffusion/denoiser_layer.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "kernels/cuda/diffusion/page_union.h"
#include "kernels/cuda/diffusion/prefix_pages.h"
#include "kernels/cuda/transfer/gather.h"

#include <memory>
#include <string>

namespace kvscope {

/// The host has every complete page. On the device each layer has slots, which hold some of its pages, and the
/// incomplete last page of each prefix; all layers share one window. It has the keys and values of one layer at a time:
/// the block that is denoised, an incomplete page, and what passes through, because it has no slot or because all of
/// the prefix is attended to. Kernels that know of no slots find in the window what they would find in a resident
/// layer. A forward calls askAhead, once it has begun, and then for every layer, in this order: restore, before the
/// block is placed; load, once the union is known; keep, when nothing else reads the layer.
class CudaPrefix {
public:
    /// What the prefix uses of the engine; everything outlives it. launch: read at every launch
    struct Parts {
        const BatchLayout& layout;
        const RowTable& rows;
        const cuda::Launch& launch;
        StageRanges& stages;
        const DenoiseReport& report; // on the device
        PerLayer<DenoiserLayer>& layers;
        const DenoiseOptions& options;
    };
    /// slots: pages of a KV head that are on the device. policy: "keep-selected" or one that goes by last use
    CudaPrefix(const Parts& parts, int slots, const std::string& policy);

    /// Asks the arena for memory on the device, and for the store on the host.
    void plan(DeviceArena& arena);
    /// Once the arena is taken: lets all layers use the window.
    void open();

    /// The next forward begins: what it will count begins at 0. Not part of a graph.
    void begin() const;
    /// Asks for pages of all layers, where the session does so. ids: [rows*block] in device memory
    void askAhead(const cuda::BlockRow* table, const std::int32_t* ids) const;
    /// Puts the incomplete pages of the rows' prefixes into the window. @return how the next kernel is launched
    cuda::Launch restore(LayerId layer, const cuda::BlockRows& rows) const;
    /// Brings what the rows attend to: the union of sparse rows to slots, as long as there are any, the whole prefix of
    /// others to the window. Sends pages that the blocks of clean rows complete to the host. `choice` has the union.
    void load(LayerId layer, const cuda::PageUnionArgs& choice) const;
    /// Keeps the pages that the blocks of clean rows leave incomplete.
    void keep(LayerId layer, const cuda::BlockRows& rows) const;
    /// Where the pages of the union lie, see BlockAttentionArgs.
    const std::int32_t* places() const { return places_; }

    /// A prompt's first `tokens` tokens are in the window: sends their complete pages to the host and keeps the
    /// incomplete one.
    void storePrompt(LayerId layer, RowId sequence, int tokens) const;
    /// Complete pages of all KV heads in so many tokens.
    int pagesOf(int tokens) const { return tokens / p_.layout.shape.blockSize * p_.layout.kvHeads; }
    std::int64_t pageBytes() const { return std::int64_t(cuda::blockBytes(p_.layout.shape)); }

private:
    using Bf16 = __nv_bfloat16;
    /// Device memory of one layer.
    struct Layer {
        cuda::PrefixSlots slots;
        Bf16* tails = nullptr; // [rows*kvHeads] pages; null: blocks end where pages do
        Bf16* store = nullptr; // pinned host memory, as the device sees it
    };
    /// Whether a prefix can end within a page.
    bool hasTails() const { return p_.options.block % p_.layout.shape.blockSize != 0; }
    std::int64_t slotsOfLayer() const { return std::int64_t(p_.layout.heads()) * slots_; }

    cuda::PrefixPagesArgs argsOf(LayerId layer) const;

    const Parts p_;
    const int slots_;
    const bool byUse_;
    const std::unique_ptr<CudaPrefixAhead> ahead_; // null: pages are loaded once they are chosen
    PerLayer<Layer> layers_;
    Bf16* blocks_ = nullptr; // device memory: the window, then the slots of all layers
    Bf16* store_ = nullptr;  // host memory: all layers
    // Device memory of one layer at a time.
    std::int32_t *places_ = nullptr, *missing_ = nullptr, *freeSlots_ = nullptr;
    cuda::BlockMove *loads_ = nullptr, *stores_ = nullptr;
};

} // namespace kvscope
