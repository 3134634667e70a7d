// The types in which a KV block can be kept, how many bytes one block of one KV head takes, and where its parts lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvscope {

/// The type of the numbers in a block. FP8 is e4m3. FP8, INT8 and INT4 keep codes with 16-bit scales beside them.
enum class KvType : std::uint8_t { F32, BF16, FP8, INT8, INT4 };
constexpr int bitsOf(KvType type) {
    constexpr int bits[] = {32, 16, 8, 8, 4};
    return bits[int(type)];
}
/// Of one number; INT4 has two numbers in a byte.
constexpr int bytesOf(KvType type) { return (bitsOf(type) + 7) / 8; }
constexpr bool hasScales(KvType type) { return type > KvType::BF16; }

/// Names as `--kv-type` takes them, in the order of KvType.
inline constexpr std::string_view kKvTypeNames[] = {"f32", "bf16", "fp8", "int8", "int4"};
constexpr std::string_view nameOf(KvType type) { return kKvTypeNames[int(type)]; }
/// Nothing where no type has this name.
constexpr std::optional<KvType> kvTypeNamed(std::string_view name) {
    for (int i = 0; i < 5; ++i)
        if (kKvTypeNames[i] == name) return KvType(i);
    return std::nullopt;
}

/// A block is one run of bytes: the codes of its keys, the codes of its values, the scales of its keys, the scales of
/// its values, and the eviction scores where it has them. Keys have a scale for each channel (INT4: a scale and a zero
/// point for each channel and 32 tokens). Values have a scale for each token (INT4: for each token and 64 channels).
/// docs/decisions/19-quantised-blocks.md says why.
struct KvFormat {
    static constexpr int kKeyGroup = 32;   // tokens of a channel that share a scale in INT4; the last group may have 16
    static constexpr int kValueGroup = 64; // channels of a token that share a scale in INT4; the last may have fewer

    KvType type = KvType::F32;
    int blockTokens = 64;
    int dim = 64;      // channels of a key
    int valueDim = 64; // channels of a value that the block stores; 0: keys only (latent attention)
    bool bias = false; // the block also holds a float32 eviction score for each token

    /// Keys and values of all tokens of a block.
    constexpr std::int64_t numbers() const { return std::int64_t(blockTokens) * (dim + valueDim); }
    constexpr int keyGroups() const { return type == KvType::INT4 ? (blockTokens + kKeyGroup - 1) / kKeyGroup : 1; }
    constexpr int valueGroups() const { return type == KvType::INT4 ? (valueDim + kValueGroup - 1) / kValueGroup : 1; }

    // Where the parts begin, in bytes. Keys begin at 0.
    constexpr std::int64_t valuesAt() const { return std::int64_t(blockTokens) * dim * bitsOf(type) / 8; }
    constexpr std::int64_t keyScalesAt() const { return numbers() * bitsOf(type) / 8; }
    constexpr std::int64_t valueScalesAt() const {
        return keyScalesAt() + std::int64_t(dim) * keyGroups() * scaleBytes();
    }
    constexpr std::int64_t biasAt() const {
        return valueScalesAt() + (valueDim > 0 ? std::int64_t(blockTokens) * valueGroups() * scaleBytes() : 0);
    }
    /// Float32 blocks are rounded up to 64 bytes, which keeps every block of an array aligned for vector loads, and
    /// blocks with scales to 128 bytes, which bulk copies of a GPU ask for.
    constexpr std::int64_t blockBytes() const {
        const std::int64_t used = biasAt() + (bias ? std::int64_t(blockTokens) * 4 : 0);
        const std::int64_t unit = hasScales(type) ? 128 : type == KvType::F32 ? 64 : 1;
        return (used + unit - 1) / unit * unit;
    }

private:
    /// Of one group: a 16-bit scale, with INT4 a 16-bit zero point too.
    constexpr std::int64_t scaleBytes() const { return type == KvType::INT4 ? 4 : hasScales(type) ? 2 : 0; }
};

} // namespace kvscope
