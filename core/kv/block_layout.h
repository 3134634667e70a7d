// How one KV block of one KV head lies in memory, on both tiers.
#pragma once

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
    std::size_t valuesAt() const { return std::size_t(blockSize) * std::size_t(dim); }
    std::size_t biasAt() const { return valuesAt() + std::size_t(blockSize) * std::size_t(storedValueDim()); }

    /// Valid tokens of the view: [begin, tokens).
    KvBlockView view(const float* block, int tokens, int begin = 0) const {
        return {block, storedValueDim() > 0 ? block + valuesAt() : nullptr, hasBias ? block + biasAt() : nullptr,
                tokens, begin};
    }
    /// Writes token `row` (0..blockSize-1) of a block: rotated key [dim], value [valueDim], bias.
    void write(float* block, int row, const float* key, const float* value, float bias) const {
        for (int c = 0; c < dim; ++c) block[std::size_t(c) * std::size_t(blockSize) + std::size_t(row)] = key[c];
        float* values = block + valuesAt() + std::size_t(row) * std::size_t(storedValueDim());
        for (int c = 0; c < storedValueDim(); ++c) values[c] = value[c];
        if (hasBias) block[biasAt() + std::size_t(row)] = bias;
    }
    /// Copies token `row` of a block to token `toRow` of another.
    void copyToken(const float* block, int row, float* to, int toRow) const {
        for (std::size_t c = 0; c < std::size_t(dim); ++c)
            to[c * std::size_t(blockSize) + std::size_t(toRow)] = block[c * std::size_t(blockSize) + std::size_t(row)];
        const std::size_t width = std::size_t(storedValueDim());
        std::copy_n(block + valuesAt() + std::size_t(row) * width, width, to + valuesAt() + std::size_t(toRow) * width);
        if (hasBias) to[biasAt() + std::size_t(toRow)] = block[biasAt() + std::size_t(row)];
    }
};

} // namespace kvscope
