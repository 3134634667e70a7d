#include "core/session/kv_estimate.h"

#include "core/session/block_format.h"

#include <algorithm>

namespace kvscope {

KvEstimate estimateKv(const Model& model, const SelectionSpec& spec, int tokens, int sequences, bool offload,
                      std::optional<std::int64_t> deviceSlots, Backend backend, bool oracle) {
    const ModelConfig& config = model.config();
    const BlockFormat format{spec.blockSize, config.headDim, spec.bias.scale != 0.f && model.hasEvictionHead(),
                             config.storedValueDim()};
    const bool gpu = backend == Backend::Cuda;
    const std::int64_t blockBytes = gpu ? cudaBlockBytes(format) : cpuBlockBytes(format);
    const std::int64_t heads = std::int64_t(sequences) * config.kvHeads;
    const int blocks = spec.grid.blocks(tokens);
    const int denseLayers = spec.dense ? config.layers : std::min(spec.denseLayers, config.layers);
    const int offloaded = offload ? config.layers - std::max(denseLayers, spec.keepsLayer0 ? 1 : 0) : 0;
    const std::int64_t resident = config.layers - offloaded;

    KvEstimate estimate;
    // The GPU's resident layers have no copy in host memory.
    estimate.hostBytes = heads * (gpu ? offloaded : config.layers) * blocks * blockBytes;
    estimate.deviceBytes = heads * resident * blocks * blockBytes;
    if (gpu && oracle && spec.tiersLackKeys()) // keys that the method forgets or keeps in another form
        estimate.oracleBytes = heads * (config.layers - denseLayers) * blocks * blockBytes;
    const std::int64_t numberBytes = gpu ? 2 : 4, windows = spec.grid.windows(tokens);
    std::int64_t perHead = 0;
    if (spec.queryScore == QueryScore::PooledSoftmax) perHead += windows * config.headDim * numberBytes;
    if (spec.queryScore == QueryScore::RangeBound) perHead += std::int64_t(blocks) * 2 * config.headDim * numberBytes;
    if (spec.agnosticScore != AgnosticScore::None) perHead += windows * 4;
    estimate.indexBytes = heads * (config.layers - denseLayers) * perHead;
    if (offloaded > 0) {
        estimate.neededSlots =
            std::min(std::max(spec.budgetBlocks() + spec.spareSlots, spec.grid.blocks(spec.denseBelowTokens)), blocks);
        estimate.blockSlots = int(std::min<std::int64_t>(deviceSlots.value_or(estimate.neededSlots), blocks));
        estimate.deviceBytes += heads * offloaded * estimate.blockSlots * blockBytes;
    }
    return estimate;
}

} // namespace kvscope
