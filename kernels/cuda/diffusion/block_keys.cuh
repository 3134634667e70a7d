// Parts of the kernels that attend with the queries of blocks: which keys a (row, KV head) attends to, how thread
// blocks share them, and how they hand over what came of it.
#pragma once

#include "kernels/cuda/diffusion/block_row.h"

#include "kernels/cuda/device/common.cuh"

#include <cuda_fp16.h>

namespace kvscope::cuda {

constexpr int kKeyTokens = 64; // tokens of a key tile

/// The keys that a (row, KV head) attends to: [0, tokens) where `pages` is null, else those of the listed pages that
/// lie below `end`. places: KV blocks of these pages, counted from the head's first one
struct BlockKeys {
    const std::int32_t *pages = nullptr, *places = nullptr;
    int tokens = 0, end = 0;
    __device__ int tiles() const { return (tokens + kKeyTokens - 1) / kKeyTokens; }
};

/// places: see BlockAttentionArgs
__device__ inline BlockKeys keysOf(const BlockRow& row, const std::int32_t* pages, const std::int32_t* places,
                                   const std::int32_t* pageCount, int item, int capacity, int blockSize) {
    if (pageCount == nullptr || !row.is(BlockRow::kSparse)) return {nullptr, nullptr, row.keys, row.keys};
    const std::size_t first = std::size_t(item) * capacity;
    return {pages + first, (places != nullptr ? places : pages) + first, pageCount[item] * blockSize, row.keys};
}

/// The tiles [begin, end) of split `index`.
struct KeyShare {
    int begin, end;
    __device__ KeyShare(int tiles, int index, int splits)
        : begin(int(std::int64_t(tiles) * index / splits)), end(int(std::int64_t(tiles) * (index + 1) / splits)) {}
};

/// Splits that a list of so many tiles fills.
__device__ inline int filledSplits(int tiles, int splits) { return min(tiles, splits); }

/// A split's results of a query as numbers of 2 bytes. They and the sum of exponentials are multiplied by `factor`, a
/// power of two, so that the largest comes to lie in [2^14, 2^15), and the largest logit grows by as much: `logit`.
/// A merge of splits gets the same from these numbers as from the results. largest: magnitude of the results
struct Halving {
    float factor, logit;
    __device__ explicit Halving(float largest) {
        constexpr int kBias = 127, kLargest = 14;
        const int exponent = min(max(int(__float_as_uint(largest) >> 23 & 0xff) - kBias - kLargest, -60), 113);
        factor = __uint_as_float(std::uint32_t(kBias - exponent) << 23);
        logit = float(exponent) * 0.69314718f;
    }
    __device__ std::uint32_t pack(float low, float high) const {
        const __half2 pair = __floats2half2_rn(low * factor, high * factor);
        return reinterpret_cast<const std::uint32_t&>(pair);
    }
};

/// The largest number that the four lanes of a quad have.
__device__ inline float quadMax(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

} // namespace kvscope::cuda
