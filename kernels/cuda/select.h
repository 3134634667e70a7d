// One decode step's choice of blocks for every (row, KV head), in one launch: scores, pooling, two-phase top-k, set
// difference, slots, the new token's place. The device form of kernels/selection.h: from the same scores it chooses the
// same blocks and slots. Also the lists of blocks that a step moves, and the gather that moves them.
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
    __nv_bfloat16* ranges = nullptr;     // [blocks, 2, dim] lowest, highest; null: the method has no ranges
    float* tokenScores = nullptr;        // [tokens] eviction scores; null without an eviction head
    const std::int64_t *windowFirst = nullptr, *blockFirst = nullptr, *tokenFirst = nullptr;
};

/// One block to move between the tiers: its index in the host store of a layer, and that of its slot in the slot pool.
struct BlockMove {
    std::uint32_t store = 0, slot = 0;
};

/// Blocks that one layer of one step moves. Counters are zero when the step begins.
struct MoveList {
    BlockMove* loads = nullptr;      // [capacity]
    BlockMove* writeBacks = nullptr; // [rows*kvHeads]
    std::uint32_t* counts = nullptr; // [0] loads, [1] write-backs
};

/// What a step reports of one (row, KV head).
struct SelectionHead {
    std::int32_t selected = 0, kept = -1, hits = 0, misses = 0; // selected 0: the head attended to everything
    std::uint32_t late = 0; // of the misses, those that the attention waited for; counted by the gather
};

/// A packed block: the id in the low 24 bits, then 3 bits of Origin, then 1 bit that says that the block had a slot.
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
    int unseen = 0; // so many newest tokens are not in the index yet: 1 where the layer before chooses for this one
    /// Sliding window of the layer in tokens, 0: none. Only blocks inside the window can be chosen. Once the sink lies
    /// before the window, scores choose as many blocks more as the sink had. Not with `chosen`.
    int slidingWindow = 0;
    float scale = 1;
    /// A choice that another kernel has made, in place of the budget: packed blocks as in recordBlocks, ascending, the
    /// newest block among them, at most `capacity`. Null: the budget and the scores choose.
    const std::uint32_t* chosen = nullptr;     // [rows, kvHeads, capacity]
    const std::int32_t* chosenCount = nullptr; // [rows, kvHeads]
    const float* chosenScores = nullptr;       // [rows, kvHeads, capacity] for the recorder, or null
    /// For benchmarks with random weights, so that the selection has a wished locality: scores are computed and then
    /// replaced by random ones, of which this share is drawn anew in a step. Negative: off.
    float planted = -1;
    // The list that the attention reads.
    int capacity = 0;
    std::int32_t *listBlock = nullptr, *listSlot = nullptr; // [rows, kvHeads, capacity]; listSlot only with slots
    std::int32_t* listCount = nullptr;                      // [rows, kvHeads]
    // The device tier. slots 0: the layer is resident.
    int slots = 0;
    std::int32_t* map = nullptr; // [sequence*kvHeads, slots] block in each slot, -1 empty
    std::int32_t* lastUse =
        nullptr;                   // [sequence*kvHeads, slots] position of the last use; set: LRU, null: keep-selected
    __nv_bfloat16* pool = nullptr; // slot blocks
    const __nv_bfloat16 *newKey = nullptr,
                        *newValue = nullptr;  // [rows, kvHeads, dim] of the newest token; null: AppendArgs places it
    bool valuesByToken = false;               // values of a block are [blockSize][dim] instead of [dim][blockSize]
    const std::int64_t* storeFirst = nullptr; // [sequence*kvHeads] first block in the host store
    MoveList moves;
    // For the recorder; null: nobody records.
    std::uint8_t* previous = nullptr;      // [sequence*kvHeads, selectionBitmapBytes()] selection one step before
    std::uint8_t* hasPrevious = nullptr;   // [sequence*kvHeads]
    SelectionHead* recordHead = nullptr;   // [rows, kvHeads]
    std::uint32_t* recordBlocks = nullptr; // [rows, kvHeads, capacity]
    float* recordScores = nullptr;         // [rows, kvHeads, capacity]
    std::uint64_t* marks[3] = {};          // stage1, pooling, offloading
    std::uint64_t* endMark = nullptr;      // the time at which the last row's lists were complete
};

[[noreturn]] void refuseContext(int blocks, int blockSize);
/// @throws Error(Unsupported) with the numbers when a multiprocessor's shared memory is too small for the context
void selectBlocksOnDevice(const Launch& launch, const SelectArgs& args);

struct GatherArgs {
    AttentionShape shape;
    MoveList moves;
    const __nv_bfloat16* store = nullptr; // pinned host memory, as the device sees it
    __nv_bfloat16* storeOut = nullptr;    // the same, for write-backs
    __nv_bfloat16* pool = nullptr;
    /// What of the list is moved. With lookahead loads may begin at once, and write-backs only when the token that
    /// fills a block is there.
    enum class Part : std::uint8_t { Both, Loads, WriteBacks } part = Part::Both;
    bool beside = false;                   // other kernels run at the same time
    std::uint32_t* recordCounts = nullptr; // [2] loads and write-backs, for the recorder
    std::uint64_t* mark = nullptr;         // the time at which the gather begins
    std::uint64_t* endMark = nullptr;      // the time at which the last block has arrived
    // A block that arrives after the time `ready` counts as late of its head. `ready` holds a time of this step if it
    // is after `begin`, the time at which the step began.
    const std::uint64_t *ready = nullptr, *begin = nullptr;
    SelectionHead* late = nullptr; // [rows*kvHeads]
    int slots = 0;                 // slots of a head; needed with `late`
};

/// Moves the listed blocks through rings of bulk copies in shared memory: loads from the host store into slots,
/// write-backs from slots into the host store. `blocks` is the number of thread blocks; 4 saturate a PCIe 5 link.
void gatherBlocks(const Launch& launch, const GatherArgs& args, int blocks = 4);

} // namespace kvscope::cuda
