// Blocks as candidates for a choice of tokens (AsyncTLS): what a step's tokens make of them for the record, and what
// the block filter's answer leaves for the next step.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/kv_shape.h"
#include "kernels/cuda/select.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Blocks of every (row, KV head), as SelectArgs::recordBlocks has them: the hit bit says that the block need not
/// travel.
struct BlockLists {
    std::uint32_t* blocks = nullptr; // [rows, kvHeads, capacity] ascending
    std::int32_t* ids = nullptr;     // likewise, without anything else; or null
    std::int32_t* count = nullptr;   // [rows, kvHeads]
    SelectionHead* heads = nullptr; // [rows, kvHeads] of what the filter chose; `late` as the gather counts it, or null
};

/// What a method that lags reports of a head, beside its selection.
struct LagHead {
    std::int32_t predicted = -1, used = 0, wasted = 0, late = 0, stale = -1; // as in SelectionRecord
};
/// When things happened in a layer, by the GPU's timer. Written where they happen; a step's own are later than its
/// begin.
struct LagMarks {
    std::uint64_t listed = 0;         // the candidates were listed
    std::uint64_t ready = 0;          // the attention could have begun but for what the step before asked for
    std::uint64_t scored = 0;         // it began
    std::uint64_t begin = 0, end = 0; // of the transfer that the step before asked for
};
/// What is reported of a layer.
struct alignas(16) LagLayer {
    LagMarks marks;
    std::uint64_t waitedNs = 0; // at the end of the step, for transfers of other layers
    std::uint64_t loads = 0;    // of the transfer
};

struct SettleArgs {
    AttentionShape shape;
    int rows = 0, firstSequence = 0; // row r is sequence firstSequence + r
    int capacity = 0, maxBlocks = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    /// The step's candidates. With `next` they are replaced: by what it lists, and the block that begins with the next
    /// token, if one does. heads become those of `next`, or without any: predicted is -1.
    BlockLists candidates;
    BlockLists next;
    std::uint32_t *counts = nullptr, *published = nullptr; // [2] of the moves that fetch `next`: moved over and cleared
    // What follows is for the recorder; head null: not wanted.
    const std::uint16_t* chosen = nullptr; // the tokens, see CandidateAttentionArgs
    const __nv_bfloat16* q = nullptr;      // [rows, queryHeads*dim], for the scores
    DeviceIndex index;
    std::uint32_t* previous = nullptr;   // [sequence*kvHeads, (maxBlocks + 31)/32] blocks selected in the step before
    std::uint8_t* hasPrevious = nullptr; // [sequence*kvHeads]
    SelectionHead* head = nullptr;       // [rows, kvHeads] of the blocks that have chosen tokens
    std::uint32_t* blocks = nullptr;     // [rows, kvHeads, capacity] or null
    float* scores = nullptr;             // likewise: sums over the group of the bounds of q.k
    LagHead* lag = nullptr;              // [rows, kvHeads] or null: the method does not lag
    LagLayer* layer = nullptr;           // or null
    const LagMarks* marks = nullptr;     // with it
};
void settleCandidates(const Launch& launch, const SettleArgs& args);

/// How long the end of a step waits for transfers of the first `layers` layers, if one ended after `ready`, which
/// is when all else was done. waitedNs null: only a place to wait in.
void reportWait(const Launch& launch, const LagMarks* marks, int layers, const std::uint64_t* ready,
                std::uint64_t* waitedNs);

/// The share of the whole attention that goes to what was attended, mean over the group: [rows, kvHeads].
/// attended: [rows, queryHeads] log sums; blocks: [rows, queryHeads, maxBlocks] those of every block up to the
/// position, from the first in the window on.
struct AttendedShareArgs {
    AttentionShape shape;
    int rows = 0, maxBlocks = 0, window = 0; // window: in tokens; 0: none
    const std::int32_t* position = nullptr;
    const std::uint8_t* active = nullptr;
    const float *attended = nullptr, *blocks = nullptr;
    float* share = nullptr;
};
void attendedShare(const Launch& launch, const AttendedShareArgs& args);

} // namespace kvscope::cuda
