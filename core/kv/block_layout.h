// How one KV block of one KV head lies in memory, on both tiers.
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>

namespace kvscope {

/// [keys: dim x blockSize, transposed][values: blockSize x dim][bias: blockSize, when the model has an eviction head],
/// float32, contiguous: a block moves as one run of bytes. The transposed keys are explained at KvBlockView.
struct BlockLayout {
    int blockSize = 64, dim = 64;
    bool hasBias = false;

    std::size_t floats() const {
        const std::size_t used =
            std::size_t(2) * std::size_t(blockSize) * std::size_t(dim) + std::size_t(hasBias ? blockSize : 0);
        return (used + 15) / 16 * 16; // keeps every block 64-byte aligned
    }
    std::int64_t bytes() const { return std::int64_t(floats() * sizeof(float)); }
    std::size_t valuesAt() const { return std::size_t(blockSize) * std::size_t(dim); }
    std::size_t biasAt() const { return 2 * valuesAt(); }

    KvBlockView view(const float* block, int tokens) const {
        return {block, block + valuesAt(), hasBias ? block + biasAt() : nullptr, tokens};
    }
    /// Writes token `row` (0..blockSize-1) of a block: rotated key [dim], value [dim], bias.
    void write(float* block, int row, const float* key, const float* value, float bias) const {
        for (int c = 0; c < dim; ++c) block[std::size_t(c) * std::size_t(blockSize) + std::size_t(row)] = key[c];
        float* values = block + valuesAt() + std::size_t(row) * std::size_t(dim);
        for (int c = 0; c < dim; ++c) values[c] = value[c];
        if (hasBias) block[biasAt() + std::size_t(row)] = bias;
    }
};

} // namespace kvscope
