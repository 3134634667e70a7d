// Both KV tiers of a session. The store holds every block, head-major: [sequence][layer][KV head][block]; sparse layers
// that offload also have a bounded pool of device slots. On the CPU backend both are ordinary memory and blocks are
// really copied between them.
//
// With quantised blocks (KvCacheOptions::type) both tiers hold full blocks alone. The block that is being written is
// float32 memory of its own, and so are the blocks of a prompt while a layer reads it: attention over a prompt sees the
// keys and values as they were computed, and later attention sees every full block quantised.
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

/// The extents of an array with one element for each KV head of each layer of each row.
using HeadExtents = Extents<RowId, LayerId, KvHeadId>;

struct KvShape {
    int layers = 0, kvHeads = 0, dim = 0;
    int valueDim = 0; // channels of a value, stored or not (BlockLayout)

    HeadExtents heads(int rows) const { return HeadExtents(rows, layers, kvHeads); }
};

/// One KV head of a layer of a row.
struct KvHead {
    float* store = nullptr; // [maxBlocks] blocks, blockBytes() apart
    BlockIndex index;
    DeviceBlockCache device;            // no slots when the layer is resident
    std::vector<std::int32_t> previous; // blocks selected in the step before, ascending
    bool hasPrevious = false;
    // With quantised blocks; blocks of layout().
    float* tail = nullptr;   // the block that is being written
    float* prompt = nullptr; // [blocks of the prompt] while the prompt is read
};

struct KvCacheOptions {
    KvShape shape;
    BlockLayout layout;
    std::vector<int> maxTokens; // [sequence] tokens each sequence may reach
    int slots = 0;              // device slots per (sequence, offloaded layer, KV head)
    LayerPlans plans;           // which layers have device slots, and which keep a block index
    KvType type = KvType::F32;  // of full blocks

    bool quantised() const { return type != KvType::F32; }
    KvFormat format() const { return {type, layout.blockSize, layout.dim, layout.storedValueDim(), layout.hasBias}; }
};

class KvCache {
public:
    /// @throws Error(OutOfMemory) with the numbers before anything is allocated
    KvCache(const KvCacheOptions& options, const SelectionSpec& spec, const CachePolicy& policy);

    KvHead& head(RowId row, LayerId layer, KvHeadId kvHead) { return heads_[headAt_.offset(row, layer, kvHead)]; }
    /// The layout of float32 blocks: of all blocks or, with quantised blocks, of those that are not quantised yet.
    const BlockLayout& layout() const { return options_.layout; }
    /// The format of full blocks in both tiers.
    const KvFormat& format() const { return format_; }
    std::int64_t blockBytes() const { return blockBytes_; }
    bool quantised() const { return options_.quantised(); }
    bool offloaded(LayerId layer) const { return options_.plans[layer].offloaded; }
    bool indexed(LayerId layer) const { return options_.plans[layer].indexed; }
    const LayerPlans& plans() const { return options_.plans; }
    int maxBlocks(RowId row) const {
        return (options_.maxTokens[index(row)] + options_.layout.blockSize - 1) / options_.layout.blockSize;
    }
    /// Block `id` in the store.
    float* storeBlock(const KvHead& head, BlockId id) const {
        return head.store + index(id) * std::size_t(blockBytes_) / sizeof(float);
    }
    /// Block `id` of a prompt that is being read, as float32: in the store, where blocks are not quantised.
    float* promptBlock(const KvHead& head, BlockId id) const {
        return quantised() ? head.prompt + index(id) * options_.layout.floats() : storeBlock(head, id);
    }
    /// The first channel of the key at `position`, which is not quantised; channels lie layout().blockSize floats
    /// apart. With quantised blocks only while the prompt is read.
    const float* storedKey(const KvHead& head, int position) const {
        return promptBlock(head, options_.layout.blockOf(position)) + options_.layout.rowOf(position);
    }
    /// The valid tokens [begin, tokens) of a full block that lies at `block` in one of the tiers.
    KvBlockView view(const float* block, int tokens, int begin) const;

    // With quantised blocks; without, these functions do nothing.
    /// Makes room for the blocks of a prompt of `tokens` tokens that the layer is going to read.
    void beginPrompt(RowId row, LayerId layer, int tokens);
    /// Writes the full blocks of the prompt to the store, and makes an incomplete last block the one that is being
    /// written.
    void storePrompt(KvHead& head, int tokens) const;
    /// Gives the room of beginPrompt back.
    void endPrompt(RowId row, LayerId layer);
    /// Writes the block that is being written, which is full, to `to` in one of the tiers.
    void quantiseTail(const KvHead& head, float* to) const;

    /// Bytes of all blocks in the store, and of those that are being written. poolBytes: of all device slots.
    static std::int64_t storeBytes(const KvCacheOptions& options);
    static std::int64_t poolBytes(const KvCacheOptions& options);

private:
    void quantise(const float* block, float* to) const;

    KvCacheOptions options_;
    KvFormat format_;
    std::int64_t blockBytes_ = 0;
    HeadExtents headAt_;
    Extents<RowId, LayerId> promptAt_;
    std::vector<AlignedBuffer<float>> stores_; // [sequence]
    std::vector<AlignedBuffer<float>> pools_;  // [sequence]
    // With quantised blocks.
    std::vector<AlignedBuffer<float>> tails_;   // [sequence][layers, KV heads] blocks
    std::vector<AlignedBuffer<float>> prompts_; // promptAt_, each [KV heads, blocks] while the layer reads a prompt
    std::vector<KvHead> heads_;                 // headAt_
};

} // namespace kvscope
