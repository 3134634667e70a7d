#include "core/kv/kv_cache.h"

#include "base/elements.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "kernels/quantised_kv.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <string>

namespace kvscope {
std::int64_t KvCache::storeBytes(const KvCacheOptions& options) {
    std::int64_t blocks = 0;
    for (const int tokens : options.maxTokens)
        blocks += (tokens + options.layout.blockSize - 1) / options.layout.blockSize;
    const std::int64_t tails =
        options.quantised() ? std::int64_t(options.maxTokens.size()) * options.layout.bytes() : 0;
    return (blocks * options.format().blockBytes() + tails) * options.shape.layers * options.shape.kvHeads;
}

std::int64_t KvCache::poolBytes(const KvCacheOptions& options) {
    return std::int64_t(options.maxTokens.size()) * options.plans.offloaded() * options.shape.kvHeads * options.slots *
           options.format().blockBytes();
}

KvCache::KvCache(const KvCacheOptions& options, const SelectionSpec& spec, const CachePolicy& policy)
    : options_(options), format_(options.format()), blockBytes_(format_.blockBytes()),
      headAt_(options.shape.heads(int(options.maxTokens.size()))),
      promptAt_(int(options.maxTokens.size()), options.shape.layers) {
    const double gib = double(std::int64_t(1) << 30);
    const std::int64_t need = storeBytes(options) + poolBytes(options),
                       free = std::int64_t(
                           std::min<std::size_t>(availableHostMemory(), std::numeric_limits<std::int64_t>::max()));
    if (need > free)
        throw Error(
            ErrorKind::OutOfMemory,
            fmt::format(
                "the KV cache needs {:.1f} GiB ({:.1f} GiB of blocks, {:.1f} GiB of device slots), {:.1f} GiB is free",
                double(need) / gib, double(storeBytes(options)) / gib, double(poolBytes(options)) / gib,
                double(free) / gib),
            "use a shorter prompt, fewer new tokens or a smaller batch");
    const std::size_t floats = Elements(blockBytes_) / sizeof(float);
    const Elements heads(options.shape.layers, options.shape.kvHeads), floatsOfTail(options.layout.floats());
    if (quantised()) prompts_.resize(promptAt_.size());
    heads_.resize(headAt_.size());
    for (const RowId row : idsUpTo<RowId>(headAt_.length(0))) {
        const int blocks = maxBlocks(row);
        const Elements perHead(blocks, floats), poolPerHead(options.slots, floats);
        auto& store = stores_.emplace_back(Elements(perHead, heads));
        auto& pool = pools_.emplace_back(Elements(poolPerHead, options.plans.offloaded(), options.shape.kvHeads));
        float* nextStore = store.data();
        float* nextPool = pool.data();
        if (quantised()) tails_.emplace_back(Elements(heads, floatsOfTail));
        for (const LayerId layer : idsUpTo<LayerId>(options.shape.layers))
            for (const KvHeadId g : idsUpTo<KvHeadId>(options.shape.kvHeads)) {
                KvHead& entry = head(row, layer, g);
                entry.store = nextStore;
                nextStore += perHead;
                if (quantised())
                    entry.tail =
                        RowsOf(tails_.back().data(), floatsOfTail)[int(layer) * options.shape.kvHeads + int(g)];
                if (indexed(layer)) entry.index = BlockIndex(spec, options.shape.dim, options.maxTokens[index(row)]);
                if (!offloaded(layer)) continue;
                entry.device = DeviceBlockCache(blockBytes_, nextPool, options.slots, blocks, policy);
                nextPool += poolPerHead;
            }
    }
}

KvBlockView KvCache::view(const float* block, int tokens, int begin) const {
    if (!quantised()) return options_.layout.view(block, tokens, begin);
    const float* bias = format_.bias ? block + Elements(format_.biasAt()) / sizeof(float) : nullptr;
    return {nullptr, nullptr, bias, tokens, begin, block};
}

void KvCache::beginPrompt(RowId row, LayerId layer, int tokens) {
    if (!quantised()) return;
    const int blocks = (tokens + options_.layout.blockSize - 1) / options_.layout.blockSize;
    const Elements ofHead(blocks, options_.layout.floats());
    AlignedBuffer<float>& prompt = prompts_[promptAt_.offset(row, layer)];
    prompt = AlignedBuffer<float>({options_.shape.kvHeads, ofHead});
    for (const KvHeadId g : idsUpTo<KvHeadId>(options_.shape.kvHeads))
        head(row, layer, g).prompt = RowsOf(prompt.data(), ofHead)[int(g)];
}

void KvCache::storePrompt(KvHead& head, int tokens) const {
    if (!quantised()) return;
    const int full = tokens / options_.layout.blockSize;
    for (const BlockId id : idsUpTo<BlockId>(full)) quantise(promptBlock(head, id), storeBlock(head, id));
    if (tokens % options_.layout.blockSize != 0)
        std::copy_n(promptBlock(head, BlockId{full}), options_.layout.floats(), head.tail);
}

void KvCache::endPrompt(RowId row, LayerId layer) {
    if (!quantised()) return;
    for (const KvHeadId g : idsUpTo<KvHeadId>(options_.shape.kvHeads)) head(row, layer, g).prompt = nullptr;
    prompts_[promptAt_.offset(row, layer)] = {};
}

void KvCache::quantiseTail(const KvHead& head, float* to) const {
    if (quantised()) quantise(head.tail, to);
}

void KvCache::quantise(const float* block, float* to) const {
    const BlockLayout& layout = options_.layout;
    quantiseBlock(format_, block, block + layout.valuesAt(), layout.hasBias ? block + layout.biasAt() : nullptr, to);
}

} // namespace kvscope
