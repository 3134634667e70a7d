#include "core/session/kv_estimate.h"

#include "core/plan/kv_format.h"
#include "core/plan/layer_plan.h"

#include <algorithm>

namespace kvscope {

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
    if (gpu && oracle && spec.tiersLackKeys()) // keys that the method forgets or keeps in another form
        estimate.oracleBytes = heads * plans.sparse() * blocks * blockBytes;
    const std::int64_t numberBytes = gpu ? 2 : 4, windows = spec.grid.windows(tokens);
    std::int64_t perHead = 0;
    if (spec.queryScore == QueryScore::PooledSoftmax) perHead += windows * config.headDim * numberBytes;
    if (spec.queryScore == QueryScore::RangeBound) perHead += std::int64_t(blocks) * 2 * config.headDim * numberBytes;
    if (spec.agnosticScore != AgnosticScore::None) perHead += windows * 4;
    estimate.indexBytes = heads * plans.sparse() * perHead;
    if (offloaded > 0) {
        estimate.neededSlots =
            std::min(std::max(spec.budgetBlocks() + spec.spareSlots, spec.grid.blocks(spec.denseBelowTokens)), blocks);
        estimate.blockSlots = int(std::min<std::int64_t>(deviceSlots.value_or(estimate.neededSlots), blocks));
        estimate.deviceBytes += heads * offloaded * estimate.blockSlots * blockBytes;
    }
    return estimate;
}

} // namespace kvscope
