// Stages stage2 and attention of a denoising forward: the active tokens of a block attend to the prefix or to chosen
// pages of it, every token attends to its block, and both parts become one softmax.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct BlockAttentionArgs {
    BlockRows rows;
    const __nv_bfloat16* q = nullptr;      // [rows*block, queryHeads*dim]
    const __nv_bfloat16* blocks = nullptr; // of the layer
    // The pages of sparse rows; all others attend to [0, BlockRow::keys).
    const std::int32_t* pages = nullptr;     // [rows, kvHeads, lists(), capacity] ascending
    const std::int32_t* pageCount = nullptr; // [rows, kvHeads] of each list
    // Where each page of `pages` lies, where not all lie in their order: its KV block, counted from the head's first
    // one. With one list a (row, KV head). Null: a page's block has its number.
    const std::int32_t* places = nullptr;
    int capacity = 0;
    int listTokens = 0; // so many tokens of the block share a list of pages; with one query head a KV head. 0: all do
    float scale = 1;
    int splits = 1; // thread blocks that share the keys of a (row, KV head), as blockSplits() says it
    // Whether earlier forwards wrote all keys and values, those of the tokens [0, BlockRow::keys), copies alone write
    // the table, and rows that are not sparse have every token active: the kernel may then read the table and the keys
    // of those rows while the kernels before it still run.
    bool settled = false;
    // The result of every split, for mergeBlocks or mergeShares. Null: the kernel writes `out` itself; there is then
    // one split, and nothing is to be merged with it.
    float* partial = nullptr; // [rows, kvHeads, splits, queries(), dim] weighted sums of values
    // Whether `partial` has numbers of 2 bytes (__half), for mergeBlocks alone: half as much to keep, to write and to
    // read. Their error, 2^-12 of each number, is an eighth of that of the bf16 numbers that come of them.
    bool halves = false;
    float2* states = nullptr;     // [rows, kvHeads, splits, queries()] largest logit, sum of exponentials
    __nv_bfloat16* out = nullptr; // [rows*block, queryHeads*dim]
    std::uint64_t* mark = nullptr;

    int lists() const { return listTokens > 0 ? (rows.block + listTokens - 1) / listTokens : 1; }
};

/// @return into how many parts blockAttention should cut the keys of rows that attend to up to maxKeys tokens
int blockSplits(const Launch& launch, const BlockRows& rows, int maxKeys);
/// Shapes: see checkAttentionShape.
void blockAttention(const Launch& launch, const BlockAttentionArgs& args);

struct BlockMergeArgs {
    BlockRows rows;
    const __nv_bfloat16* q = nullptr;
    const __nv_bfloat16* blocks = nullptr;
    const std::int32_t* pageCount = nullptr; // as in BlockAttentionArgs
    float scale = 1;
    int splits = 1;
    const float* partial = nullptr;
    bool halves = false; // as in BlockAttentionArgs
    const float2* states = nullptr;
    // Attention over the prefix. The kernel writes that of active tokens; of the others it reads what an earlier
    // forward has written. Null where every token is always active.
    float* prefix = nullptr;      // [rows*block, queryHeads, dim]
    float* prefixSums = nullptr;  // [rows*block, queryHeads] natural logarithms; -inf without a prefix
    __nv_bfloat16* out = nullptr; // [rows*block, queryHeads*dim]
};
/// Attends to the keys of the block itself, which lie at the block's positions, and merges the result with the
/// attention over the prefix into one softmax. Is launched right behind blockAttention: it reads the block while that
/// still runs.
void mergeBlocks(const Launch& launch, const BlockMergeArgs& args);

} // namespace kvscope::cuda
