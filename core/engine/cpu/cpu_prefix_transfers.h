// CPU backend: the pages of a prefix that waits on the host, and how long the modelled link takes for them.
#pragma once

#include "core/kv/kv_cache.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// The host has every complete page; slots on the device have some of them. An incomplete last page is on the device
/// until a clean forward completes it, takes no slot and is always a hit. Pages travel on demand: the attention waits.
class CpuPrefixTransfers {
public:
    /// The cache, whose layers offload, outlives the object.
    CpuPrefixTransfers(Kernels& kernels, KvCache& cache, const Link& link)
        : kernels_(kernels), cache_(cache), link_(link) {}

    /// A KV head attends to these pages, ascending; the first `complete` pages of its prefix are complete. Pages get
    /// slots as long as there are any, those that have one first, then the lower ones; the others pass through. hit:
    /// for each page, whether it was on the device.
    void fetch(KvHead& head, std::span<const std::int32_t> pages, int complete, int step,
               std::vector<std::uint8_t>& hit);
    /// A KV head attends to its whole prefix: pages without a slot pass through, and slots stay as they are.
    void passThrough(const KvHead& head, int complete);
    /// So many pages were completed and go to the host.
    void store(int pages) { stored_ += pages; }
    /// Makes the copies, and adds to `layer` what has travelled since the call before.
    /// @param waits whether the attention waits for what was fetched
    void account(LayerRecord& layer, bool waits);

    /// Where a page lies: in its slot, else in the store.
    const float* page(const KvHead& head, BlockId id) const {
        const bool hasSlot = head.device.slots() > 0 && head.device.resident(id);
        return hasSlot ? head.device.block(id) : cache_.storeBlock(head, id);
    }

private:
    Kernels& kernels_;
    KvCache& cache_;
    const Link link_;
    std::vector<CopyItem> copies_;
    std::vector<std::int32_t> kept_; // pages that get slots
    std::vector<std::uint8_t> wasThere_;
    int loaded_ = 0, stored_ = 0;
};

} // namespace kvscope
