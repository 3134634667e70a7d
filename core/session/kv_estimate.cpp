#include "core/session/kv_estimate.h"

#include "core/kv/block_index.h"
#include "core/plan/kv_format.h"
#include "core/plan/layer_plan.h"
#include "core/session/most_attended.h"

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

std::vector<MemoryNeed> tierNeeds(const TierUse& use, int tokens) {
    const ModelConfig& config = use.config;
    const SelectionSpec& spec = use.spec;
    KvFormat format = kvFormat(use.backend, config, spec, use.kvType), own = kvFormat(use.backend, config, spec);
    format.bias = own.bias = format.bias && use.evictionHead;
    const bool gpu = use.backend == Backend::Cuda;
    const std::int64_t blockBytes = format.blockBytes(), blocks = spec.grid.blocks(tokens),
                       ownBytes = own.blockBytes(); // a layer without slots holds bf16 numbers on a GPU
    const auto perHead = [](const char* key, const char* what, MemoryTier tier, Holds holds, std::int64_t bytes,
                            LayerSet layers) {
        return MemoryNeed{key, what, tier, holds, Lifetime::Session, Per::KvHead, bytes, layers};
    };
    using enum MemoryTier;
    std::vector<MemoryNeed> needs{perHead("kv_store", "KV blocks", Host, Holds::Kv, blocks * blockBytes,
                                          gpu ? LayerSet::Offloaded : LayerSet::All),
                                  perHead("kv_slots", gpu ? "KV slots" : "device slots", Device, Holds::Kv,
                                          use.deviceSlots * blockBytes, LayerSet::Offloaded),
                                  perHead("block_index", "block index", Device, Holds::Index,
                                          blockIndexBytes(use.backend, spec, config.headDim, tokens),
                                          LayerSet::Sparse)};
    if (format.type != own.type)
        needs.push_back(perHead("kv_tails", "KV blocks that are being written", gpu ? Device : Host, Holds::Kv,
                                ownBytes, gpu ? LayerSet::Offloaded : LayerSet::All));
    if (!gpu) return needs;
    needs.push_back(
        perHead("kv_resident", "resident KV cache", Device, Holds::Kv, blocks * ownBytes, LayerSet::Resident));
    if (use.evictionHead)
        needs.push_back(perHead("token_scores", "eviction scores", Device, Holds::Index,
                                blocks * spec.blockSize * std::int64_t(sizeof(float)), LayerSet::All));
    if (use.oracle && spec.tiersLackKeys()) // keys that the method forgets or stores in another form
        needs.push_back(
            perHead("oracle_keys", "the oracle's keys", Device, Holds::Scratch, blocks * ownBytes, LayerSet::Sparse));
    return needs;
}

KvEstimate estimateKv(const Model& model, const MethodEntry& method, const MethodUse& use, ContextLength length,
                      int sequences, std::optional<std::int64_t> deviceSlots, bool oracle) {
    const ModelConfig& config = use.config;
    const SelectionSpec& spec = use.spec;
    const int tokens = length.tokens(), blocks = spec.grid.blocks(tokens);
    const LayerPlans plans(config, spec, {.offload = use.offload, .longest = tokens});
    TierUse tiers{use.backend, config, spec, 0, model.hasEvictionHead(), oracle, use.kvType};
    KvEstimate estimate;
    if (plans.offloaded() > 0) {
        estimate.neededSlots = std::min(spec.neededSlots(), blocks);
        estimate.blockSlots = int(std::min<std::int64_t>(deviceSlots.value_or(estimate.neededSlots), blocks));
        tiers.deviceSlots = estimate.blockSlots;
    }
    MemoryPlan plan(config, plans);
    const std::vector<MemoryNeed> common = tierNeeds(tiers, tokens);
    const std::vector<MemoryNeed> own =
        method.memory != nullptr ? method.memory(use, length) : std::vector<MemoryNeed>();
    for (int sequence = 0; sequence < sequences; ++sequence) plan.add(common), plan.add(own);
    using enum MemoryTier;
    estimate.hostBytes = plan.bytes(Host, Holds::Kv);
    estimate.deviceBytes = plan.bytes(Device, Holds::Kv);
    estimate.indexBytes = plan.bytes(Device, Holds::Index);
    estimate.oracleBytes = plan.bytes("oracle_keys");

    const std::int64_t blockBytes = kvFormat(use.backend, config, spec, use.kvType).blockBytes();
    if (use.backend == Backend::Cuda) {
        for (const MemoryNeed& need : own)
            if (need.tier == Device && need.holds == Holds::Kv && need.per == Per::KvHead && use.offload)
                estimate.blockSlots += int((need.bytes + blockBytes - 1) / blockBytes);
        return estimate;
    }
    const std::int64_t layerBytes = plan.bytes("kv_store") / config.layers;
    estimate.sharedBytes = layerBytes * plans.resident();
    if (plans.ownTiers() > 0 && !use.offload) estimate.sharedBytes += layerBytes * plans.ownTiers();
    if (plans.ownTiers() > 0 && use.offload) {
        const int attended = mostAttended(method, use, length);
        estimate.blockSlots =
            attended > 0 ? std::min(std::max(spec.grid.blocks(attended), spec.deviceSlots), blocks) : blocks;
        estimate.sharedBytes += layerBytes / blocks * estimate.blockSlots * plans.ownTiers();
    }
    return estimate;
}

} // namespace kvscope
