#include "core/session/kv_estimate.h"

#include "core/kv/block_index.h"
#include "core/plan/kv_format.h"
#include "core/plan/layer_plan.h"

#include <algorithm>

namespace kvscope {

std::int64_t blockIndexBytes(Backend backend, const SelectionSpec& spec, int dim, int tokens) {
    const bool gpu = backend == Backend::Cuda;
    const std::int64_t number = gpu ? 2 : 4, ring = spec.grid.kernel, blocks = spec.grid.blocks(tokens);
    const std::int64_t windows = spec.grid.windows(tokens);
    std::int64_t bytes = 0;
    if (spec.queryScore == QueryScore::PooledSoftmax) {
        constexpr std::int64_t kTile = BlockIndex::kTileWindows;
        const std::int64_t tiles = (windows + kTile - 1) / kTile; // the CPU keeps pooled keys in tiles
        bytes += ((gpu ? windows : tiles * kTile) + ring) * dim * number;
        if (!gpu) bytes += tiles * std::int64_t(sizeof(const float*));
    }
    if (spec.agnosticScore != AgnosticScore::None) bytes += (windows + ring) * std::int64_t(sizeof(float));
    if (spec.queryScore == QueryScore::RangeBound) bytes += blocks * 2 * dim * number;
    return bytes;
}

KvEstimate estimateKv(const Model& model, const SelectionSpec& spec, int tokens, int sequences, bool offload,
                      std::optional<std::int64_t> deviceSlots, Backend backend, bool oracle) {
    const ModelConfig& config = model.config();
    KvFormat format = kvFormat(backend, config, spec);
    format.bias = format.bias && model.hasEvictionHead();
    const bool gpu = backend == Backend::Cuda;
    const std::int64_t blockBytes = format.blockBytes();
    const std::int64_t heads = std::int64_t(sequences) * config.kvHeads;
    const int blocks = spec.grid.blocks(tokens);
    const LayerPlans plans(config, spec, {.offload = offload, .longest = tokens});
    const int offloaded = plans.offloaded() + (offload ? plans.ownTiers() : 0);
    const std::int64_t resident = config.layers - offloaded;

    KvEstimate estimate;
    // The GPU's resident layers have no copy in host memory.
    estimate.hostBytes = heads * (gpu ? offloaded : config.layers) * blocks * blockBytes;
    estimate.deviceBytes = heads * resident * blocks * blockBytes;
    if (gpu && oracle && spec.tiersLackKeys()) // keys that the method forgets or stores in another form
        estimate.oracleBytes = heads * plans.sparse() * blocks * blockBytes;
    estimate.indexBytes = heads * plans.sparse() * blockIndexBytes(backend, spec, config.headDim, tokens);
    if (offloaded > 0) {
        estimate.neededSlots = std::min(spec.neededSlots(), blocks);
        estimate.blockSlots = int(std::min<std::int64_t>(deviceSlots.value_or(estimate.neededSlots), blocks));
        estimate.deviceBytes += heads * offloaded * estimate.blockSlots * blockBytes;
    }
    return estimate;
}

} // namespace kvscope
