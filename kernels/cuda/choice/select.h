// Stages stage1 and pooling of all methods that choose blocks, and the slots of stage offloading. One launch makes the
// choice for every (row, KV head) of a decode step: scores, pooling, two-phase top-k, set difference, slots, the new
// token's place. The device form of kernels/selection.h: from the same scores this kernel chooses the same blocks and
// slots.
#pragma once

#include "kernels/cuda/device/block_moves.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/device_index.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/kernels.h"
#include "kernels/planted.h"
#include "kernels/selection.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Bytes of one head's bitmap of selected blocks.
constexpr int kMostBitmapBytes = 1024;
constexpr int selectionBitmapBytes(int maxBlocks) { return maxBlocks <= 2048 ? 256 : kMostBitmapBytes; }

/// A choice that another kernel has made: packed blocks as in SelectRecord::blocks, ascending, the newest block among
/// them, at most `capacity`.
struct ChosenBlocks {
    const PackedBlock* blocks = nullptr; // [rows, kvHeads, capacity]; null: the budget and the scores choose
    const std::int32_t* count = nullptr; // [rows, kvHeads]
    const float* scores = nullptr;       // [rows, kvHeads, capacity] for the recorder, or null
};

/// For benchmarks with random weights, so that selections have a given locality: scores are computed and then replaced
/// by random ones.
struct PlantedScores {
    float share = -1;                       // of the scores, drawn anew in each step; negative: none
    const PlantedStream* streams = nullptr; // [rows] the same by stream and rate of each row; null: none
    int firstHead = 0;                      // KV heads of the batch before row 0, where rows are a part of it
};

/// The list that the attention reads.
struct SelectList {
    std::int32_t *block = nullptr, *slot = nullptr; // [rows, kvHeads, capacity]; slot only where the layer has slots
    std::int32_t* count = nullptr;                  // [rows, kvHeads]
};

/// The device tier of an offloaded layer.
struct SelectSlots {
    int count = 0;                         // of every head, or with countOf the most; 0: the layer is resident
    const std::int32_t* countOf = nullptr; // [rows] slots of a row's heads; null: `count`
    /// [sequence*kvHeads] where a head's slots begin in `map`, `lastUse` and `pool`; null: all heads' follow each
    /// other.
    const std::int64_t *mapFirst = nullptr, *useFirst = nullptr, *poolFirst = nullptr;
    std::int32_t* map = nullptr;     // [sequence*kvHeads, count] block in each slot, -1 empty
    std::int32_t* lastUse = nullptr; // [sequence*kvHeads, count] position of the last use: LRU; null: keep-selected
    __nv_bfloat16* pool = nullptr;   // slot blocks
    /// [sequence*kvHeads] blocks: tokens are written here, and not into the slots of their blocks, because slots hold
    /// full blocks in a format of their own (gatherQuantised); null: into the slots
    __nv_bfloat16* newest = nullptr;
    const __nv_bfloat16 *newKey = nullptr,
                        *newValue = nullptr;  // [rows, kvHeads, dim] of the newest token; null: AppendArgs places it
    bool valuesByToken = false;               // values of a block are [blockSize][dim] instead of [dim][blockSize]
    const std::int64_t* storeFirst = nullptr; // [sequence*kvHeads] first block in the host store, as BlockMove::store
    MoveList moves;                           // the loads that the choice needs, and the blocks that became full
};

/// What the choice writes for the recorder; null: not recorded.
struct SelectRecord {
    SelectionHead* heads = nullptr;      // [rows, kvHeads]
    PackedBlock* blocks = nullptr;       // [rows, kvHeads, capacity]
    float* scores = nullptr;             // [rows, kvHeads, capacity]
    std::uint8_t* previous = nullptr;    // [sequence*kvHeads, selectionBitmapBytes()] selection one step before
    std::uint8_t* hasPrevious = nullptr; // [sequence*kvHeads]
    int previousBytes = 0;               // from one head's bitmap to the next; 0: selectionBitmapBytes(maxBlocks)
    /// [sequence*kvHeads] where a head's part of `previous` and `hasPrevious` lies; null: heads follow each other.
    const std::int64_t *previousFirst = nullptr, *hasPreviousFirst = nullptr;
};

/// Times at which stages begin, and at which the last row's lists were complete. Null: not recorded.
struct SelectMarks {
    std::uint64_t *stage1 = nullptr, *pooling = nullptr, *offloading = nullptr, *end = nullptr;
};

/// Queries that are not rotated yet, one for each KV head (Score::PooledProduct); rows as in SelectArgs.
struct GuessedQueries {
    const float* projected = nullptr;           // [rows, kvHeads*dim]; null: SelectArgs::q has the queries
    const float *cos = nullptr, *sin = nullptr; // [table rows, dim/2]
    const std::int32_t* ropeFirst = nullptr;    // [rows] table row of a sequence's position 0
    bool interleaved = false;                   // see RotateArgs
};

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
    GuessedQueries guess;               // with Score::PooledProduct; dim 64 or 128
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
    ChosenBlocks chosen;
    PlantedScores planted;

    int capacity = 0; // most blocks of a list
    SelectList list;
    SelectSlots slots;
    SelectRecord record;
    SelectMarks marks;
};

/// @throws Error(Unsupported) with the numbers when a multiprocessor's shared memory is too small for the context
void selectBlocksOnDevice(const Launch& launch, const SelectArgs& args);

} // namespace kvscope::cuda
