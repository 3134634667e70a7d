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

    int valuesAt() const { return blockSize * dim; }
    int biasAt() const { return valuesAt() + blockSize * storedValueDim(); }

    /// Valid tokens of the view: [begin, tokens).
    KvBlockView view(const float* block, int tokens, int begin = 0) const {
        return {block, storedValueDim() > 0 ? block + valuesAt() : nullptr, hasBias ? block + biasAt() : nullptr,
                tokens, begin};
    }
    /// Writes token `row` (0..blockSize-1) of a block: rotated key [dim], value [valueDim], bias.
    void write(float* block, int row, const float* key, const float* value, float bias) const {
        const int width = storedValueDim();
        writeKey(block, row, key);
        std::copy_n(value, width, block + valuesAt() + row * width);
        if (hasBias) block[biasAt() + row] = bias;
    }
    /// Writes the key [dim] of token `row` alone.
    void writeKey(float* block, int row, const float* key) const {
        for (int c = 0; c < dim; ++c) block[c * blockSize + row] = key[c];
    }
    /// Reads the key [dim] of token `row` of a block.
    void readKey(const float* block, int row, float* key) const {
        for (int c = 0; c < dim; ++c) key[c] = block[c * blockSize + row];
    }
    /// Copies token `row` of a block to token `toRow` of another.
    void copyToken(const float* block, int row, float* to, int toRow) const {
        const int width = storedValueDim();
        for (int c = 0; c < dim; ++c) to[c * blockSize + toRow] = block[c * blockSize + row];
        std::copy_n(block + valuesAt() + row * width, width, to + valuesAt() + toRow * width);
        if (hasBias) to[biasAt() + toRow] = block[biasAt() + row];
    }
};

} // namespace kvscope
