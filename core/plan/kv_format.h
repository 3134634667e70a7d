// Which format the KV blocks of a session have. Everyone who counts their bytes asks here.
#pragma once

#include "core/model/model_config.h"
#include "core/plan/backend.h"
#include "core/plan/selection_spec.h"
#include "kernels/kv_format.h"

#include <optional>

namespace kvscope {

/// The type that a backend computes and stores with where nobody asks for another.
constexpr KvType ownKvType(Backend backend) { return backend == Backend::Cpu ? KvType::F32 : KvType::BF16; }

/// The format of full blocks on the host and in slots. Layers without slots hold, on a GPU, the bf16 numbers that come
/// back from it. Eviction scores are in the block on the CPU, where the method's attention uses them; on a GPU they are
/// in an array of their own.
/// @param type nothing: the backend's own
inline KvFormat kvFormat(Backend backend, const ModelConfig& config, const SelectionSpec& spec,
                         std::optional<KvType> type = {}) {
    return {type.value_or(ownKvType(backend)), spec.blockSize, config.headDim, config.storedValueDim(),
            backend == Backend::Cpu && spec.bias.scale != 0.f};
}

/// The bytes that each KV head of a GPU has beside its slots: where full blocks have a type of their own, slots hold
/// full blocks only, and the block that is being written is bf16.
inline std::int64_t deviceTailBytes(Backend backend, const ModelConfig& config, const SelectionSpec& spec,
                                    std::optional<KvType> type) {
    const KvFormat own = kvFormat(backend, config, spec);
    return backend == Backend::Cuda && type.value_or(own.type) != own.type ? own.blockBytes() : 0;
}

} // namespace kvscope
