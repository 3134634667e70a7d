// How one KV block of one KV head lies in memory, on both tiers.
#pragma once

#include "base/ids.h"
#include "core/plan/kv_format.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvscope {

/// [keys: dim x blockSize, transposed][values: blockSize x dim][bias: blockSize, when the model has an eviction head],
/// float32, contiguous: a block moves as one run of bytes. The transposed keys are explained at KvBlockView.
/// With latent attention the values are the beginning of the keys, and a block holds keys only.
struct BlockLayout {
    int blockSize = 64, dim = 64;
    bool hasBias = false;
    int valueDim = -1; // of the stored values; -1: as the keys, 0: none are stored

    int storedValueDim() const { return valueDim < 0 ? dim : valueDim; }

    std::size_t floats() const { return std::size_t(bytes()) / sizeof(float); }
    std::int64_t bytes() const { return KvFormat{KvType::F32, blockSize, dim, storedValueDim(), hasBias}.blockBytes(); }
    /// Where the token at a position of its sequence lies: in which block, and which of the block's tokens it is.
    BlockId blockOf(int position) const { return BlockId{position / blockSize}; }
    int rowOf(int position) const { return position % blockSize; }

    std::size_t valuesAt() const { return std::size_t(blockSize) * std::size_t(dim); }
    std::size_t biasAt() const { return valuesAt() + std::size_t(blockSize) * std::size_t(storedValueDim()); }

    /// Valid tokens of the view: [begin, tokens).
    KvBlockView view(const float* block, int tokens, int begin = 0) const {
        return {block, storedValueDim() > 0 ? block + valuesAt() : nullptr, hasBias ? block + biasAt() : nullptr,
                tokens, begin};
    }
    /// Writes token `row` (0..blockSize-1) of a block: rotated key [dim], value [valueDim], bias.
    void write(float* block, int row, const float* key, const float* value, float bias) const {
        const auto width = std::size_t(storedValueDim());
        writeKey(block, row, key);
        std::copy_n(value, width, block + valuesAt() + std::size_t(row) * width);
        if (hasBias) block[biasAt() + std::size_t(row)] = bias;
    }
    /// Writes the key [dim] of token `row` alone.
    void writeKey(float* block, int row, const float* key) const {
        const auto size = std::size_t(blockSize);
        auto at = std::size_t(row);
        for (int c = 0; c < dim; ++c, at += size) block[at] = key[c];
    }
    /// Reads the key [dim] of token `row` of a block.
    void readKey(const float* block, int row, float* key) const {
        const auto size = std::size_t(blockSize);
        auto at = std::size_t(row);
        for (int c = 0; c < dim; ++c, at += size) key[c] = block[at];
    }
    /// Copies token `row` of a block to token `toRow` of another.
    void copyToken(const float* block, int row, float* to, int toRow) const {
        const auto size = std::size_t(blockSize), width = std::size_t(storedValueDim());
        const auto from = std::size_t(row), at = std::size_t(toRow);
        for (int c = 0; c < dim; ++c) to[std::size_t(c) * size + at] = block[std::size_t(c) * size + from];
        std::copy_n(block + valuesAt() + from * width, width, to + valuesAt() + at * width);
        if (hasBias) to[biasAt() + at] = block[biasAt() + from];
    }
};

} // namespace kvscope
