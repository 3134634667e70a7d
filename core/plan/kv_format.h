// How many bytes one KV block of one KV head takes, on any tier. Everyone who counts such bytes asks here.
#pragma once

#include "core/model/model_config.h"
#include "core/plan/backend.h"
#include "core/plan/selection_spec.h"

#include <cstdint>

namespace kvscope {

/// The type of the numbers in a block.
enum class KvType : std::uint8_t { F32, BF16 };
constexpr int bytesOf(KvType type) { return type == KvType::F32 ? 4 : 2; }

struct KvFormat {
    KvType type = KvType::F32;
    int blockTokens = 64;
    int dim = 64;      // channels of a key
    int valueDim = 64; // channels of a value that the block stores; 0: keys only (latent attention)
    bool bias = false; // the block also holds a float32 eviction score for each token

    /// Keys and values of all tokens of a block.
    std::int64_t numbers() const { return std::int64_t(blockTokens) * (dim + valueDim); }
    /// Key and value of one token.
    std::int64_t tokenBytes() const { return std::int64_t(dim + valueDim) * bytesOf(type); }
    /// Float32 blocks are rounded up to 64 bytes, which keeps every block of an array aligned for vector loads.
    std::int64_t blockBytes() const {
        const std::int64_t used = numbers() * bytesOf(type) + (bias ? std::int64_t(blockTokens) * 4 : 0);
        return type == KvType::F32 ? (used + 63) / 64 * 64 : used;
    }
};

/// The format of both tiers of a session. On the CPU: float32, eviction scores in the block where the method's
/// attention uses them. On a GPU: bf16, eviction scores in an array of their own.
inline KvFormat kvFormat(Backend backend, const ModelConfig& config, const SelectionSpec& spec) {
    const bool cpu = backend == Backend::Cpu;
    return {cpu ? KvType::F32 : KvType::BF16, spec.blockSize, config.headDim, config.storedValueDim(),
            cpu && spec.bias.scale != 0.f};
}

} // namespace kvscope
