// KV blocks in 8 or 4 bits: on the host, on the link and in slots full blocks are codes with scales, of which attention
// makes bf16 numbers. Layers without slots hold those bf16 numbers, and so a block gives the same bits wherever it
// lies.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/cuda/transfer/gather.h"
#include "kernels/kv_format.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Codes lie in the order in which a bf16 block has its numbers (kv_shape.h); of INT4 two neighbours share a byte, the
/// first one in the low half. The parts begin where `KvFormat` says. Formats: FP8, INT8 and INT4 with values, without
/// eviction scores; dim and blockTokens multiples of 16, blockTokens up to 256, dim 64 or 128.
/// @throws Error(Unsupported) otherwise
void checkQuantisedFormat(const KvFormat& format);

/// Writes the blocks [0, blocks) of every head, bf16, to the host in `format`.
struct StoreQuantisedArgs {
    KvFormat format;
    const __nv_bfloat16* from = nullptr; // head h's blocks begin at from + h*fromStride
    void* to = nullptr;                  // pinned host memory, as the device sees it; head h's at to + h*toStride bytes
    std::int64_t fromStride = 0, toStride = 0;
    int heads = 0, blocks = 0;
};
void storeQuantised(const Launch& launch, const StoreQuantisedArgs& args);

/// Replaces the numbers of the blocks [0, blocks) of every head by those that come back from `format`.
struct RoundBlocksArgs {
    KvFormat format;
    __nv_bfloat16* blocks = nullptr; // head h's begin at blocks + h*stride
    std::int64_t stride = 0;
    int heads = 0, count = 0;
};
void roundBlocks(const Launch& launch, const RoundBlocksArgs& args);

/// Replaces the numbers of the newest block of each head likewise, if the token of this step has filled the block.
struct RoundNewestArgs {
    KvFormat format;
    __nv_bfloat16* blocks = nullptr;
    const std::int64_t* headFirst = nullptr; // [rows*kvHeads] first block of the head, in blocks
    const std::int32_t* position = nullptr;  // [rows]
    const std::uint8_t* active = nullptr;    // [rows] 0: skip the row
    int rows = 0, kvHeads = 0;
};
void roundNewest(const Launch& launch, const RoundNewestArgs& args);

/// gatherBlocks where full blocks are in `format` both on the host and in slots: a load is a copy. `args.store` and
/// `args.pool` count blocks of `format`. A write-back quantises the bf16 block of its head in `args.newest`, to the
/// host and to the slot, and leaves in `args.newest` the numbers that come back. `blocks` thread blocks load.
void gatherQuantised(const Launch& launch, const GatherArgs& args, const KvFormat& format, int blocks = 4);

} // namespace kvscope::cuda
