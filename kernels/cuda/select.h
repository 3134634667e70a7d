// One decode step's choice of blocks, per (row, KV head), in one launch: scores, pooling, two-phase top-k, set
// difference, slot assignment, the new token's place. The device form of kernels/selection.h, with the same results on
// equal scores.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/kv_shape.h"
#include "kernels/kernels.h"
#include "kernels/selection.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// What selection knows of the cached keys of one layer; the device form of core/kv/block_index.h. Windows, blocks and
/// tokens of (sequence, KV head) begin at windowFirst, blockFirst and tokenFirst [sequence*kvHeads + g].
struct DeviceIndex {
    int kernel = 32, stride = 16;
    bool exponentiates = false;          // pooled scores are means of exp(score)
    __nv_bfloat16* recentKeys = nullptr; // [sequence*kvHeads, kernel, dim] ring by token; null: keys are not pooled
    float* recentScores = nullptr;       // [sequence*kvHeads, kernel]; null: scores are not pooled
    __nv_bfloat16* pooledKeys = nullptr; // [windows, dim]
    float* pooledScores = nullptr;       // [windows]
    __nv_bfloat16* ranges = nullptr;     // [blocks, 2, dim] lowest, highest; null: not kept
    float* tokenScores = nullptr;        // [tokens] eviction scores; null without an eviction head
    const std::int64_t *windowFirst = nullptr, *blockFirst = nullptr, *tokenFirst = nullptr;
};

/// One block to move between the tiers: indices of 1 block each, into the host store and the slot pool of a layer.
struct BlockMove {
    std::uint32_t store = 0, slot = 0;
};

/// Blocks that one layer of one step moves. Counters are zero when the step begins.
struct MoveList {
    BlockMove* loads = nullptr;      // [capacity]
    BlockMove* writeBacks = nullptr; // [rows*kvHeads]
    std::uint32_t* counts = nullptr; // [0] loads, [1] write-backs
};

/// Per (row, KV head), in host memory that kernels may write.
struct SelectionHead {
    std::int32_t selected = 0, kept = -1, hits = 0, misses = 0; // selected 0: attended everything
    std::uint32_t late = 0; // of the misses, those that the attention waited for; counted by the gather
};

/// block id in the low 24 bits, then 3 bits of Origin, then 1 bit: was resident.
constexpr std::uint32_t kOriginShift = 24, kHitShift = 27;

/// Bytes of one head's bitmap of selected blocks.
constexpr int selectionBitmapBytes(int maxBlocks) { return maxBlocks <= 2048 ? 256 : 1024; }

struct SelectArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const __nv_bfloat16* q = nullptr;       // [rows, queryHeads*dim]; [rows, kvHeads*dim] with Score::PooledProduct
    bool oneSequence = false;               // rows are query tokens of `sequence`
    int sequence = 0;
    DeviceIndex index;
    int maxBlocks = 0; // most blocks of a sequence
    // The method (core/plan/selection_spec.h)
    enum class Score : std::uint8_t {
        None,
        PooledSoftmax,
        PooledProduct, // one query for the group, no softmax, no scale
        RangeBound,
        Given
    } score = Score::None;
    const float* givenScores = nullptr; // [rows, kvHeads, maxBlocks] with Score::Given
    bool agnostic = false;
    GroupReduce rangeReduce = GroupReduce::Sum;
    SelectionBudget budget;
    int denseBelowTokens = 0;
    int unseen = 0; // newest tokens that the index does not have yet: a choice ahead of the layer
    /// Sliding window of the layer in tokens, 0: none. Only blocks within it exist for the choice, and a sink that has
    /// left it leaves its share to the method's scores. Not with `chosen`.
    int slidingWindow = 0;
    float scale = 1;
    /// A choice made elsewhere, in place of the budget: ids in the low 24 bits, then Origin, ascending, as recordBlocks
    /// has them; with the newest block, at most `capacity`. Null: the budget chooses.
    const std::uint32_t* chosen = nullptr;     // [rows, kvHeads, capacity]
    const std::int32_t* chosenCount = nullptr; // [rows, kvHeads]
    const float* chosenScores = nullptr;       // [rows, kvHeads, capacity] for the recorder, or null
    /// Benchmarks with random weights: scores are computed, then replaced by ones that change for this share of blocks
    /// a step, so that the selection has a chosen locality. Negative: off.
    float planted = -1;
    // The list, for the attention
    int capacity = 0;
    std::int32_t *listBlock = nullptr, *listSlot = nullptr; // [rows, kvHeads, capacity]; listSlot only with slots
    std::int32_t* listCount = nullptr;                      // [rows, kvHeads]
    // The device tier; slots 0: everything resident
    int slots = 0;
    std::int32_t* map = nullptr; // [sequence*kvHeads, slots] block in each slot, -1 empty
    std::int32_t* lastUse =
        nullptr;                   // [sequence*kvHeads, slots] position of the last use; set: LRU, null: keep-selected
    __nv_bfloat16* pool = nullptr; // slot blocks
    const __nv_bfloat16 *newKey = nullptr,
                        *newValue = nullptr;  // [rows, kvHeads, dim] of the token being fed; null: it comes later
    bool valuesByToken = false;               // where the value goes: [blockSize][dim] instead of [dim][blockSize]
    const std::int64_t* storeFirst = nullptr; // [sequence*kvHeads] first block in the host store
    MoveList moves;
    // For the recorder; null: not wanted
    std::uint8_t* previous = nullptr;      // [sequence*kvHeads, selectionBitmapBytes()] the step before
    std::uint8_t* hasPrevious = nullptr;   // [sequence*kvHeads]
    SelectionHead* recordHead = nullptr;   // [rows, kvHeads]
    std::uint32_t* recordBlocks = nullptr; // [rows, kvHeads, capacity]
    float* recordScores = nullptr;         // [rows, kvHeads, capacity]
    std::uint64_t* marks[3] = {};          // stage1, pooling, offloading
    std::uint64_t* endMark = nullptr;      // when the last row's lists were written
};

[[noreturn]] void refuseContext(int blocks, int blockSize);
/// @throws Error(Unsupported) when the context is too long for the processor's shared memory, with the numbers
void selectBlocksOnDevice(const Launch& launch, const SelectArgs& args);

struct GatherArgs {
    AttentionShape shape;
    MoveList moves;
    const __nv_bfloat16* store = nullptr; // pinned host memory, as the device sees it
    __nv_bfloat16* storeOut = nullptr;    // the same, for write-backs
    __nv_bfloat16* pool = nullptr;
    /// A lookahead's write-backs wait for the token that fills the block, its loads for nothing.
    enum class Part : std::uint8_t { Both, Loads, WriteBacks } part = Part::Both;
    bool beside = false;                   // other kernels are at work: little shared memory each
    std::uint32_t* recordCounts = nullptr; // [2] loads and write-backs, for the recorder
    std::uint64_t* mark = nullptr;         // when the gather begins
    std::uint64_t* endMark = nullptr;      // when the last block has arrived
    // Blocks that arrive after `ready` of this step, which began at `begin`, count as late of their head.
    const std::uint64_t *ready = nullptr, *begin = nullptr;
    SelectionHead* late = nullptr; // [rows*kvHeads]
    int slots = 0;                 // per head, with late
};

/// Moves the listed blocks: loads host to device, write-backs device to host, through a ring in shared memory fed by
/// the bulk-copy engine. `blocks`: thread blocks; 4 saturate a PCIe 5 link, leaving the rest of the GPU free.
void gatherBlocks(const Launch& launch, const GatherArgs& args, int blocks = 4);

} // namespace kvscope::cuda
