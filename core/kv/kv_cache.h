// Both KV tiers of a session. The store holds every block, head-major: [sequence][layer][KV head][block]; sparse layers
// that offload also have a bounded pool of device slots. On the CPU backend both are ordinary memory and blocks are
// really copied between them.
#pragma once

#include "base/extents.h"
#include "base/ids.h"
#include "core/kv/block_index.h"
#include "core/kv/block_layout.h"
#include "core/kv/device_block_cache.h"
#include "core/plan/layer_plan.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// What has one element for each KV head of each layer of each row.
using HeadExtents = Extents<RowId, LayerId, KvHeadId>;

struct KvShape {
    int layers = 0, kvHeads = 0, dim = 0;
    int valueDim = 0; // channels of a value, stored or not (BlockLayout)

    HeadExtents heads(int rows) const { return HeadExtents(rows, layers, kvHeads); }
};

/// One KV head of a layer of a row.
struct KvHead {
    float* store = nullptr; // [maxBlocks] blocks
    BlockIndex index;
    DeviceBlockCache device;            // no slots when the layer is resident
    std::vector<std::int32_t> previous; // blocks selected in the step before, ascending
    bool hasPrevious = false;
};

struct KvCacheOptions {
    KvShape shape;
    BlockLayout layout;
    std::vector<int> maxTokens; // [sequence] tokens each sequence may reach
    int slots = 0;              // device slots per (sequence, offloaded layer, KV head)
    LayerPlans plans;           // which layers have device slots, and which keep a block index
};

class KvCache {
public:
    /// @throws Error(OutOfMemory) with the numbers before anything is allocated
    KvCache(const KvCacheOptions& options, const SelectionSpec& spec, const CachePolicy& policy);

    KvHead& head(RowId row, LayerId layer, KvHeadId kvHead) { return heads_[headAt_.offset(row, layer, kvHead)]; }
    const BlockLayout& layout() const { return options_.layout; }
    bool offloaded(LayerId layer) const { return options_.plans[layer].offloaded; }
    bool indexed(LayerId layer) const { return options_.plans[layer].indexed; }
    const LayerPlans& plans() const { return options_.plans; }
    int maxBlocks(RowId row) const {
        return (options_.maxTokens[index(row)] + options_.layout.blockSize - 1) / options_.layout.blockSize;
    }
    /// Block `id` in the store.
    float* storeBlock(const KvHead& head, BlockId id) const {
        return head.store + index(id) * options_.layout.floats();
    }
    /// The first channel of the key at `position` in the store; channels lie layout().blockSize floats apart.
    const float* storedKey(const KvHead& head, int position) const {
        return storeBlock(head, options_.layout.blockOf(position)) + options_.layout.rowOf(position);
    }

    static std::int64_t storeBytes(const KvCacheOptions& options);
    static std::int64_t poolBytes(const KvCacheOptions& options);

private:
    KvCacheOptions options_;
    HeadExtents headAt_;
    std::vector<AlignedBuffer<float>> stores_; // [sequence]
    std::vector<AlignedBuffer<float>> pools_;  // [sequence]
    std::vector<KvHead> heads_;                // headAt_
};

} // namespace kvscope
