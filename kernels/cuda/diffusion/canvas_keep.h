// Sparse-dLLM's choice for the blocks of a forward in one layer: how well the tokens outside a block agree with its
// mean query, which of them are kept, and a copy of their keys and values.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// One sequence whose block chooses. The forward computes all of its tokens.
struct KeepRow {
    std::int32_t sequence = 0;
    std::int32_t firstQuery = 0; // row of KeepArgs::q of position 0
    std::int32_t tokens = 0;     // prompt and canvas
    std::int32_t block = 0;      // position of the block's first token
    std::int32_t kept = 0;       // tokens that stay, at most tokens - blockTokens
};

struct KeepArgs {
    AttentionShape shape;
    int rows = 0, blockTokens = 0;
    int mostTokens = 0, mostKept = 0; // of any row
    int kernel = 1;                   // tokens around a token, itself included, whose highest importance counts; odd
    const KeepRow* table = nullptr;   // [rows]
    const __nv_bfloat16* q = nullptr; // [tokens of all rows, queryHeads*dim], rotated
    __nv_bfloat16* blocks = nullptr;  // of the layer
    // [sequence*kvHeads + g] first KV block of a head's tokens, and of the copies of those that it keeps
    const std::int64_t *headFirst = nullptr, *keptFirst = nullptr;
    float* mean = nullptr;        // [rows, kvHeads, dim] work space
    float* importance = nullptr;  // [rows, mostTokens] out: of the tokens outside the block, ascending
    std::int32_t* kept = nullptr; // [sequence, mostKept] out: positions, ascending
    std::uint64_t *scoreMark = nullptr, *keepMark = nullptr;
};
/// Writes `importance`: for each token outside the block the mean, over the query heads and the tokens of the block, of
/// the products of their queries with the token's key, without a scale.
void scoreCanvasTokens(const Launch& launch, const KeepArgs& args);
/// Chooses the tokens to keep: those around which, among `kernel` neighbours, the highest importance is highest; of
/// equal ones the lower. Copies their keys and values in the order of their positions.
void keepCanvasTokens(const Launch& launch, const KeepArgs& args);

/// @throws Error(Unsupported) where a choice among so many tokens does not fit into shared memory
void checkKeptTokens(const Launch& launch, int mostTokens);

} // namespace kvscope::cuda
