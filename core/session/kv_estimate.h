// The memory of the two KV tiers: what a session declares of it, and the sums before a session exists.
#pragma once

#include "core/plan/kv_format.h"
#include "core/plan/memory_plan.h"
#include "core/select/method.h"
#include "core/session/decode_session.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvscope {

struct KvEstimate {
    std::int64_t hostBytes = 0, deviceBytes = 0; // KV blocks
    std::int64_t oracleBytes = 0;                // KV blocks that only the oracle reads, on the device tier
    std::int64_t indexBytes = 0;                 // block index, eviction scores and the method's index, on the device
    // CPU: what counts as device memory and is read in the host store: blocks of resident layers, and of methods with a
    // tier of their own
    std::int64_t sharedBytes = 0;
    int blockSlots = 0;  // slots per (sequence, layer, KV head); 0: everything resident
    int neededSlots = 0; // fewest slots with which the method works
};

/// Bytes of the common block index for one KV head in one layer: pooled keys and scores, or key ranges, and the ring of
/// tokens whose pooling window is not complete.
std::int64_t blockIndexBytes(Backend backend, const SelectionSpec& spec, int dim, int tokens);

/// What decides how large the common tiers are, beside a sequence's length.
struct TierUse {
    Backend backend = Backend::Cpu;
    const ModelConfig& config;
    const SelectionSpec& spec;
    int deviceSlots = 0;               // per (sequence, offloaded layer, KV head)
    bool evictionHead = false;         // the model has one
    bool oracle = false;               // the oracle measures all keys
    std::optional<KvType> kvType = {}; // of full blocks; nothing: the backend's own
};

/// What one sequence takes in the tiers that all methods share: KV blocks, the block index and eviction scores. The
/// engines take this, and estimates add it up. On the CPU the KV blocks of all layers are in the host store; on a GPU
/// those of layers that are not offloaded are on the device alone.
std::vector<MemoryNeed> tierNeeds(const TierUse& use, int tokens);

/// @param length of every sequence
/// @param deviceSlots device slots that were asked for
KvEstimate estimateKv(const Model& model, const MethodEntry& method, const MethodUse& use, ContextLength length,
                      int sequences, std::optional<std::int64_t> deviceSlots = {}, bool oracle = false);

} // namespace kvscope
