// Stages rope, compression and offloading of a denoising forward: queries, keys and values of the blocks, how much they
// changed since the forward before, and which tokens are active.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"
#include "kernels/cuda/token/token.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct BlockPlaceArgs {
    BlockRows rows;
    const float* qkv = nullptr;                 // [rows*block, (queryHeads + 2 kvHeads)*dim]
    const float *cos = nullptr, *sin = nullptr; // [table rows, dim/2]
    const std::int32_t* ropeFirst = nullptr;    // [sequence] table row of position 0
    bool interleaved = false;
    HeadNorms norms;
    __nv_bfloat16* q = nullptr;      // [rows*block, queryHeads*dim], rotated
    __nv_bfloat16* blocks = nullptr; // of the layer: keys and values go to the block's own positions
    float* before = nullptr;         // [rows*block, queryHeads*dim] queries of the forward before; those of this
                                     // forward take their place. Null: nothing is compared
    float2* changes = nullptr;       // [rows*block, queryHeads] sums of (q - before)^2 and of q^2; with `before`
    float* beforeKv = nullptr;       // [rows*block, keys, values, kvHeads*dim] likewise of keys, rotated, and values
    float2* kvChanges = nullptr;     // [rows*block, keys, values, kvHeads]; with `beforeKv`
    std::uint64_t* mark = nullptr;
};
/// Norms and rotates the queries and keys of the blocks and writes keys and values to the blocks' positions; where
/// `before` is set, also writes how much the queries changed since the forward before.
void placeBlocks(const Launch& launch, const BlockPlaceArgs& args);

struct NameActiveArgs {
    BlockRows rows;
    const float2* changes = nullptr; // of placeBlocks; null: every token is active
    bool perHead = false;            // an active set for each KV head instead of one for all
    int count = 0;                   // tokens of a set, unless byThreshold
    bool byThreshold = false;        // all that reach `threshold` are active
    double threshold = 0;
    std::uint64_t* active = nullptr; // [rows, kvHeads] out
    float* scores = nullptr;         // [rows, kvHeads or 1, block] out, of rows that compare: mean square changes;
                                     // 0 where the change is below 1e-10 of the queries' mean square
    std::uint64_t* mark = nullptr;
};
/// Writes the active tokens of each row: the most changed ones, of equal ones the lower. In rows that are not sparse,
/// and in rows with kEveryToken, all tokens are active.
void nameActive(const Launch& launch, const NameActiveArgs& args);

struct KvChangesArgs {
    BlockRows rows;
    const float2* changes = nullptr; // BlockPlaceArgs::kvChanges
    float* scores = nullptr;         // [rows, keys, values, block] out: mean square changes, over all KV heads
};
/// Writes how much each token's keys and values changed, by the rule of NameActiveArgs::scores.
void addKvChanges(const Launch& launch, const KvChangesArgs& args);

/// Enters the clean rows' keys into the ranges of the pages that they touch. A page is a KV block.
struct BoundBlocksArgs {
    BlockRows rows;
    const __nv_bfloat16* blocks = nullptr;
    __nv_bfloat16* ranges = nullptr; // [blocks, 2, dim] lowest, highest; heads at BlockRows::headFirst
    std::uint64_t* mark = nullptr;
};
void boundBlocks(const Launch& launch, const BoundBlocksArgs& args);

} // namespace kvscope::cuda
