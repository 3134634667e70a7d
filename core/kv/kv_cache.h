// Both KV tiers of a session. The store holds every block, head-major: [sequence][layer][KV head][block]; sparse layers
// that offload also have a bounded pool of device slots. On the CPU backend both are ordinary memory and blocks are
// really copied between them.
#pragma once

#include "core/kv/block_index.h"
#include "core/kv/block_layout.h"
#include "core/kv/device_block_cache.h"
#include "core/plan/layer_plan.h"

#include <cstdint>
#include <vector>

namespace kvscope {

struct KvShape {
    int layers = 0, kvHeads = 0, dim = 0;
    int valueDim = 0; // channels of a value, stored or not (BlockLayout)
};

/// One (sequence, layer, KV head).
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

    KvHead& head(int sequence, int layer, int kvHead) {
        return heads_[(std::size_t(sequence) * std::size_t(options_.shape.layers) + std::size_t(layer)) *
                          std::size_t(options_.shape.kvHeads) +
                      std::size_t(kvHead)];
    }
    const BlockLayout& layout() const { return options_.layout; }
    bool offloaded(int layer) const { return options_.plans[layer].offloaded; }
    bool indexed(int layer) const { return options_.plans[layer].indexed; }
    const LayerPlans& plans() const { return options_.plans; }
    int maxBlocks(int sequence) const {
        return (options_.maxTokens[std::size_t(sequence)] + options_.layout.blockSize - 1) / options_.layout.blockSize;
    }
    /// Block `id` in the store.
    float* storeBlock(KvHead& head, std::int32_t id) const {
        return head.store + std::size_t(id) * options_.layout.floats();
    }

    static std::int64_t storeBytes(const KvCacheOptions& options);
    static std::int64_t poolBytes(const KvCacheOptions& options);

private:
    KvCacheOptions options_;
    std::vector<AlignedBuffer<float>> stores_; // [sequence]
    std::vector<AlignedBuffer<float>> pools_;  // [sequence]
    std::vector<KvHead> heads_;
};

} // namespace kvscope
