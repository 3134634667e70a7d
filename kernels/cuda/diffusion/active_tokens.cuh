// Parts of the kernels that work on the active tokens of a block.
#pragma once

#include "kernels/cuda/diffusion/block_row.h"

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

__device__ inline std::uint64_t allOf(int block) {
    return block >= 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << block) - 1;
}

/// The tokens of (row, KV head) that attend.
__device__ inline std::uint64_t activeOf(const BlockRows& a, int row, int g) {
    return a.active != nullptr ? a.active[row * a.shape.kvHeads + g] : allOf(a.block);
}

/// Writes the active tokens, ascending, to `tokens` in shared memory. All threads of the thread block call this; a
/// barrier follows.
__device__ inline void listActive(std::uint64_t active, std::uint8_t (&tokens)[kMostDenoised]) {
    for (int i = int(threadIdx.x); i < kMostDenoised; i += int(blockDim.x))
        if ((active >> i & 1) != 0) tokens[__popcll(active & ((std::uint64_t(1) << i) - 1))] = std::uint8_t(i);
    __syncthreads();
}

} // namespace kvscope::cuda
