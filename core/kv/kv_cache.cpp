#include "core/kv/kv_cache.h"

#include "base/error.h"
#include "base/host_memory.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <string>

namespace kvscope {
std::int64_t KvCache::storeBytes(const KvCacheOptions& options) {
    std::int64_t blocks = 0;
    for (const int tokens : options.maxTokens)
        blocks += (tokens + options.layout.blockSize - 1) / options.layout.blockSize;
    return blocks * options.shape.layers * options.shape.kvHeads * options.layout.bytes();
}

std::int64_t KvCache::poolBytes(const KvCacheOptions& options) {
    return std::int64_t(options.maxTokens.size()) * options.plans.offloaded() * options.shape.kvHeads * options.slots *
           options.layout.bytes();
}

KvCache::KvCache(const KvCacheOptions& options, const SelectionSpec& spec, const CachePolicy& policy)
    : options_(options), headAt_(options.shape.heads(int(options.maxTokens.size()))) {
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
    const std::size_t floats = options.layout.floats();
    heads_.resize(headAt_.size());
    for (const RowId row : idsUpTo<RowId>(headAt_.length(0))) {
        const int blocks = maxBlocks(row);
        const std::size_t perHead = std::size_t(blocks) * floats, poolPerHead = std::size_t(options.slots) * floats;
        auto& store = stores_.emplace_back(perHead * std::size_t(options.shape.layers * options.shape.kvHeads));
        auto& pool = pools_.emplace_back(poolPerHead * std::size_t(options.plans.offloaded() * options.shape.kvHeads));
        float* nextStore = store.data();
        float* nextPool = pool.data();
        for (const LayerId layer : idsUpTo<LayerId>(options.shape.layers))
            for (const KvHeadId g : idsUpTo<KvHeadId>(options.shape.kvHeads)) {
                KvHead& entry = head(row, layer, g);
                entry.store = nextStore;
                nextStore += perHead;
                if (indexed(layer)) entry.index = BlockIndex(spec, options.shape.dim, options.maxTokens[index(row)]);
                if (!offloaded(layer)) continue;
                entry.device = DeviceBlockCache(options.layout, nextPool, options.slots, blocks, policy);
                nextPool += poolPerHead;
            }
    }
}

} // namespace kvscope
