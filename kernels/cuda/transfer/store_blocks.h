// Stores the blocks of a prompt in the host's memory by a kernel.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstddef>

namespace kvscope::cuda {

/// Bytes side by side in device memory that go to pinned host memory, once for each KV head. Strides and lengths are
/// bytes, multiples of 16; so are the addresses.
struct StoreBlocksArgs {
    const void* from = nullptr;
    void* to = nullptr; // pinned host memory, as the device sees it
    std::size_t bytes = 0, fromStride = 0, toStride = 0;
    int heads = 0;
};

/// The threads of `blocks` thread blocks for each head store 16 bytes at a time.
void storeBlocks(const Launch& launch, const StoreBlocksArgs& args, int blocks = 16);

} // namespace kvscope::cuda
