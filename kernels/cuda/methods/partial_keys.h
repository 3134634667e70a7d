// InfiniGen's partial keys: every key along the few directions in which a layer's queries vary most.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Elements of a partial key in memory: its dims, rounded up to whole 16-byte pieces, which end in zeros.
constexpr int partialWidth(int dims) { return (dims + 7) / 8 * 8; }

/// The partial keys of one layer; heads are [sequence*kvHeads*sharing].
struct PartialKeys {
    float* directions = nullptr;              // [heads, dim, partialWidth], zeros beyond dims
    __nv_bfloat16* keys = nullptr;            // [tokens, partialWidth]
    const std::int64_t* tokenFirst = nullptr; // [heads] first token of the head; null: at head * stride
    std::int64_t stride = 0;
    int width = 0;
    int sharing = 1; // sets of directions for each KV head: 1, or one for each of its query heads
};

/// gram[g] += the sum over tokens of m m^T, where m is the mean of the token's queries of KV head g. Both triangles are
/// written.
struct QueryGramArgs {
    AttentionShape shape;
    const __nv_bfloat16* q = nullptr; // [tokens, queryHeads*dim]
    int tokens = 0;
    double* gram = nullptr; // [kvHeads, dim, dim]
};
void addQueryGram(const Launch& launch, const QueryGramArgs& args);

/// Makes the partial keys of one sequence's prompt.
struct PartialPromptArgs {
    AttentionShape shape;
    int sequence = 0, tokens = 0;
    const __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;           // in elements
    PartialKeys partial;
};
void keepPartialPrompt(const Launch& launch, const PartialPromptArgs& args);

/// Makes the partial key of a decode step's token.
struct PartialAppendArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* newKey = nullptr;  // [rows, kvHeads*dim]
    PartialKeys partial;
};
void appendPartialKey(const Launch& launch, const PartialAppendArgs& args);

/// scores[row, g, b] = the largest product of the group's summed queries with a partial key of block b, both along the
/// directions, among the tokens before `position`; -inf for a block without such tokens.
struct PartialScoreArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* q = nullptr;       // [rows, queryHeads*dim]
    PartialKeys partial;
    int maxBlocks = 0;
    float* scores = nullptr; // [rows, kvHeads, maxBlocks]
};
void scorePartialKeys(const Launch& launch, const PartialScoreArgs& args);

/// scores[row, h, t] = scale times the product of query head h with the partial key of token t, both along the head's
/// own directions, for the tokens before `position`.
struct PartialTokenScoreArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* q = nullptr;       // [rows, queryHeads*dim]
    PartialKeys partial;
    float scale = 1;
    int maxTokens = 0;       // for the grid
    float* scores = nullptr; // [rows*queryHeads] lists, `stride` apart
    std::int64_t stride = 0;
};
void scorePartialTokens(const Launch& launch, const PartialTokenScoreArgs& args);

/// sums[h, i] += the sum over `tokens` queries of |q_h . vector i of head h|. vectors: [queryHeads, dim, dim], a vector
/// in each row.
struct AlongArgs {
    AttentionShape shape;
    const __nv_bfloat16* q = nullptr; // [tokens, queryHeads*dim]
    int tokens = 0;
    const float* vectors = nullptr;
    float* sums = nullptr; // [queryHeads, dim]
};
void addLengthsAlong(const Launch& launch, const AlongArgs& args);

} // namespace kvscope::cuda
