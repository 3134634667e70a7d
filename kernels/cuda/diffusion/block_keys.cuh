// Parts of the kernels that attend with the queries of blocks: which keys a (row, KV head) attends to, and how thread
// blocks share them.
#pragma once

#include "kernels/cuda/diffusion/block_row.h"

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

constexpr int kKeyTokens = 64; // tokens of a key tile

/// The keys that a (row, KV head) attends to: [0, tokens) where `pages` is null, else those of the listed pages that
/// lie below `end`.
struct BlockKeys {
    const std::int32_t* pages = nullptr;
    int tokens = 0, end = 0;
    __device__ int tiles() const { return (tokens + kKeyTokens - 1) / kKeyTokens; }
};

__device__ inline BlockKeys keysOf(const BlockRow& row, const std::int32_t* pages, const std::int32_t* pageCount,
                                   int item, int capacity, int blockSize) {
    if (pageCount == nullptr || !row.is(BlockRow::kSparse)) return {nullptr, row.keys, row.keys};
    return {pages + std::size_t(item) * capacity, pageCount[item] * blockSize, row.keys};
}

/// The tiles [begin, end) of split `index`.
struct KeyShare {
    int begin, end;
    __device__ KeyShare(int tiles, int index, int splits)
        : begin(int(std::int64_t(tiles) * index / splits)), end(int(std::int64_t(tiles) * (index + 1) / splits)) {}
};

/// Splits that a list of so many tiles fills.
__device__ inline int filledSplits(int tiles, int splits) { return min(tiles, splits); }

} // namespace kvscope::cuda
