// Stages embed, rope and compression: embedding, rotation, eviction scores and the block index.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/device_index.h"
#include "kernels/cuda/device/kv_shape.h"

namespace kvscope::cuda {

/// x[row, :] = scale * table[ids[row], :]. Also sets `clearCount` words at `clear`, the step's counters, to zero.
void embedTokens(const Launch& launch, const __nv_bfloat16* table, int cols, const std::int32_t* ids, int rows,
                 float* x, float scale = 1.f, std::uint32_t* clear = nullptr, int clearCount = 0,
                 std::uint64_t* mark = nullptr);

struct EvictionHead {
    const float* delta = nullptr; // [kvHeads, kvHeads*dim]
    const float* gain = nullptr;  // [kvHeads]; null: the model has no eviction head
    /// The rows that foldEvictionHead makes lie behind those of the layer's query, key and value projections.
    bool folded = false;
};

/// Weights of the RMS norms that every head's query and key pass before the rotation; null: the model has no norms of
/// heads.
struct HeadNorms {
    const float *query = nullptr, *key = nullptr; // [dim]
    float eps = 0.f;
};

struct RotateArgs {
    AttentionShape shape;
    const float* qkv = nullptr;                 // [rows, (queryHeads + 2 kvHeads)*dim]
    const float *cos = nullptr, *sin = nullptr; // [table rows, dim/2]
    bool interleaved = false;                   // pairs are neighbours (2i, 2i+1) instead of halves (i, i + dim/2)
    EvictionHead eviction;
    HeadNorms norms;
    __nv_bfloat16* q = nullptr; // [rows, queryHeads*dim], rotated
    DeviceIndex index;          // gets the token's score and, where it has them, pooled keys, pooled scores and ranges
};

/// Decode: one token of each sequence (row = sequence).
struct AppendArgs : RotateArgs {
    int rows = 0;
    const std::int32_t* position = nullptr;
    const std::int32_t* ropeFirst = nullptr; // [rows] table row of a sequence's position 0
    /// [rows] In place of ropeFirst, where sequences have tables of their own: the numbers of a row's tables for
    /// position 0 begin at cos + cosFirst[row] and sin + sinFirst[row].
    const std::int64_t *cosFirst = nullptr, *sinFirst = nullptr;
    const std::uint8_t* active = nullptr;
    // Where key and value go: into the newest block at `blocks`, to newKey and newValue, or to both. Where the newest
    // block has no slot before the layer has chosen, `blocks` is null, and the selection takes newKey and newValue.
    __nv_bfloat16* blocks = nullptr;
    const std::int64_t* headFirst = nullptr;
    /// Lists of a layer whose blocks the layer before has chosen: the last entry of a list is the newest block, and its
    /// slot counts from headFirst. Null: the newest block lies at its id.
    const std::int32_t *listSlot = nullptr, *listCount = nullptr; // [rows, kvHeads, capacity], [rows, kvHeads]
    int capacity = 0;
    bool newestOnly = false;    // `blocks` holds only the newest block of each head, [rows*kvHeads]
    bool valuesByToken = false; // in the blocks: [blockSize][dim]
    __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads, dim]
    std::uint64_t* marks[2] = {};                         // rope, compression
};
void rotateAndAppend(const Launch& launch, const AppendArgs& args);

/// Prompt: n consecutive tokens of one sequence, into its blocks. cos and sin begin at its position 0.
struct PromptArgs : RotateArgs {
    int n = 0, firstPosition = 0, sequence = 0;
    __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;     // in elements
};
void rotatePrompt(const Launch& launch, const PromptArgs& args);
/// Enters prompt tokens into the block index, reading their keys from the blocks: the windows that these tokens
/// complete, the ranges of their blocks, and the rings of recent keys and scores.
void indexPrompt(const Launch& launch, const PromptArgs& args);

/// Copies the last block of a prompt, which is not full, into slot 0 of each KV head, and writes its id into the map.
/// newest: [sequence*kvHeads] blocks; where set, the block is copied there, and slot 0 is only its own.
void placeTail(const Launch& launch, const AttentionShape& shape, const __nv_bfloat16* blocks, std::int64_t headStride,
               int sequence, int tokens, __nv_bfloat16* pool, int slots, std::int32_t* map, std::int32_t* lastUse,
               __nv_bfloat16* newest = nullptr);

/// Independent normal numbers of the given deviation; the same seed gives the same numbers. Synchronous.
void fillNormal(__nv_bfloat16* to, std::size_t count, float deviation, std::uint64_t seed);

/// Plausible eviction scores: softplus of normal numbers. Synchronous.
void fillScores(float* to, std::size_t count, std::uint64_t seed);

} // namespace kvscope::cuda
