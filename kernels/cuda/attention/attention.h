// Stages stage2 and attention of all methods: the tokens of a decode step attend to listed KV blocks or to all, and
// consecutive tokens of a prompt attend causally.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/kv_format.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// The blocks that each (row, KV head) attends to. Without `count` and `block` these are all up to the position.
struct AttendedList {
    const std::int32_t* block = nullptr; // [rows, kvHeads, capacity] block ids, ascending
    const std::int32_t* slot = nullptr;  // where each lies relative to headFirst; null: at its id
    const std::int32_t* count = nullptr; // [rows, kvHeads]
    const std::int32_t* first = nullptr; // [rows, kvHeads] so many first entries of the list are left out; or null
    int capacity = 0;
};

/// What a token's eviction score adds to its logits: scale * score.
struct TokenBias {
    const float* scores = nullptr;       // by token, or null
    const std::int64_t* first = nullptr; // [sequence*kvHeads + g]: first token's index
    float scale = 0;
};

/// Work space for the results of thread blocks that share a list.
struct SplitScratch {
    float* partial = nullptr;          // attentionPartialFloats()
    std::uint32_t* arrivals = nullptr; // attentionArrivals() words, zero before and after
};

struct DecodeAttentionArgs {
    AttentionShape shape;
    int rows = 0;                            // query tokens
    const std::int32_t* position = nullptr;  // [rows] of the query token; keys at later positions are masked
    const std::int32_t* shift = nullptr;     // [rows] added to the position; no kernel of a step writes it. Null: 0
    const std::uint8_t* active = nullptr;    // [rows] 0: skip the row
    const __nv_bfloat16* q = nullptr;        // [rows, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr;   // the layer's resident store or its slot pool
    const std::int64_t* headFirst = nullptr; // [sequence*kvHeads + g]: first block (or slot) of the head, in blocks
    bool oneSequence = false;                // all rows belong to sequence `sequence` (prompt); else row = sequence
    int sequence = 0;
    AttendedList list;
    int window = 0;    // a query sees the last `window` tokens, itself included; 0: all. 0 with packed tokens
    int maxBlocks = 0; // most blocks a row attends, for the grid
    /// How many tokens of each (row, KV head) have been packed into its blocks 0, 1, .. (token_pack.h). These are
    /// attended, whatever lists and position say, and `bias` is indexed by a token's place in the blocks. Null: the
    /// blocks are those of the sequence, and `bias` is indexed by position.
    const std::int32_t* packedTokens = nullptr; // [rows, kvHeads]
    float scale = 1;                            // logits = scale q.k, and the bias
    TokenBias bias;
    __nv_bfloat16* out = nullptr; // [rows, queryHeads*valueDim]
    float* logSums = nullptr;     // [rows, queryHeads] log of the sum of exp(logit); null: not wanted
    SplitScratch scratch;
    std::uint64_t* mark = nullptr;
    /// The format of full blocks. With scales, `blocks` holds codes (and headFirst counts blocks of the format) where
    /// `newest` is set, and else the bf16 numbers that come back from codes; both give the same bits. Blocks of other
    /// formats are bf16. With scales there are no packed tokens, and row = sequence where `newest` is set.
    KvFormat format;
    const __nv_bfloat16* newest = nullptr; // [rows*kvHeads] blocks: those of the positions, in bf16, full or not
};

/// Floats of SplitScratch::partial that a launch may need.
std::size_t attentionPartialFloats(const Launch& launch, const AttentionShape& shape, int rows, int maxBlocks);
std::size_t attentionArrivals(const AttentionShape& shape, int rows);

/// Shapes: see checkAttentionShape.
void decodeAttention(const Launch& launch, const DecodeAttentionArgs& args);

struct PrefillAttentionArgs {
    AttentionShape shape;
    int n = 0, firstPosition = 0;          // query tokens of one sequence
    int window = 0;                        // as in DecodeAttentionArgs
    const __nv_bfloat16* q = nullptr;      // [n, queryHeads*dim]
    const __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;           // in elements
    const float* tokenBias = nullptr;      // head g's scores begin at tokenBias + g*biasStride, or null
    std::int64_t biasStride = 0;
    float scale = 1, biasScale = 0;
    __nv_bfloat16* out = nullptr; // [n, queryHeads*valueDim]
    float* logSums = nullptr;     // [n, queryHeads] log of the sum of exp(logit); null: not wanted
};

/// Shapes: see checkAttentionShape; blockSize is at most 64 or a multiple of 64.
void prefillAttention(const Launch& launch, const PrefillAttentionArgs& args);

} // namespace kvscope::cuda
