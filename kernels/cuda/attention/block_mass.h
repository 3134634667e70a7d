// The oracle: measures how much attention each cached block, or each part of a block, would get if every block were
// attended.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct BlockMassArgs {
    AttentionShape shape;
    int rows = 0;                            // row = sequence
    const std::int32_t* position = nullptr;  // [rows] of the query token; keys at later positions are masked
    const std::uint8_t* active = nullptr;    // [rows] 0: the row is left alone; null: all
    const __nv_bfloat16* q = nullptr;        // [rows, queryHeads*dim], rotated
    const __nv_bfloat16* blocks = nullptr;   // every block by its id; read once, may be in pinned host memory
    const std::int64_t* headFirst = nullptr; // [rows*kvHeads] first block of the head in `blocks`
    // The slots, if the newest block is in a slot and not in `blocks`. slots 0: the newest block is in `blocks`.
    int slots = 0;
    const __nv_bfloat16* pool = nullptr;     // [rows*kvHeads, slots] blocks
    const std::int32_t* map = nullptr;       // [rows*kvHeads, slots] block in each slot
    const float* tokenBias = nullptr;        // eviction scores by token, or null
    const std::int64_t* biasFirst = nullptr; // [rows*kvHeads] first token's index
    int window = 0;                          // keys this many positions before the query's or more are masked; 0: none
    float scale = 1, biasScale = 0;          // logits = scale q.k + biasScale * bias
    int maxBlocks = 0;
    int unit = 0;             // tokens that are measured together, a divisor of the block's; 0: a block's
    float* logSums = nullptr; // [rows, queryHeads, maxUnits()] work space
    float* mass = nullptr;    // [rows, kvHeads, maxUnits()] out: share of the attention, mean over the group's heads
    std::uint64_t* mark = nullptr;
    __host__ __device__ int unitTokens() const { return unit > 0 ? unit : shape.blockSize; }
    __host__ __device__ int maxUnits() const { return maxBlocks * (shape.blockSize / unitTokens()); }
};

/// Appends every row's new key to blocks that only the oracle reads.
struct KeepKeysArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] 0: the row is left alone; null: all
    const __nv_bfloat16* newKey = nullptr;  // [rows, kvHeads, dim], rotated
    __nv_bfloat16* blocks = nullptr;
    const std::int64_t* headFirst = nullptr; // [rows*kvHeads] first block of the head
};
void keepKeys(const Launch& launch, const KeepKeysArgs& args);

/// Reads all keys once. Sums are float32 and always added up in the same order, so that all runs agree. Writes only the
/// units that the query sees, up to that of its position.
void measureBlockMass(const Launch& launch, const BlockMassArgs& args);

} // namespace kvscope::cuda
