// AsyncTLS: blocks are candidates, of which a step chooses tokens. What a step reports of its candidates after it has
// chosen tokens, and how the blocks that it has chosen for the next step become that step's candidates.
#pragma once

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// A list of blocks for every (row, KV head), packed as in SelectRecord::blocks. The hit bit says that a block had
/// a slot and need not be loaded.
struct BlockLists {
    PackedBlock* blocks = nullptr;  // [rows, kvHeads, capacity] ascending
    std::int32_t* ids = nullptr;    // [rows, kvHeads, capacity] the ids alone; or null
    std::int32_t* count = nullptr;  // [rows, kvHeads]
    SelectionHead* heads = nullptr; // [rows, kvHeads] numbers of the blocks' choice, `late` from the gather; or null
};

/// What a method that lags reports of a head, beside its selection.
struct LagHead {
    std::int32_t predicted = -1, used = 0, wasted = 0, late = 0, stale = -1; // as in SelectionRecord
};
/// Times of a layer by the GPU's timer, written by the kernels concerned. A time belongs to this step if it is later
/// than the step's begin.
struct LagMarks {
    std::uint64_t listed = 0;         // the candidates were listed
    std::uint64_t ready = 0;          // the attention could have begun if no transfer had been under way
    std::uint64_t scored = 0;         // the attention began
    std::uint64_t begin = 0, end = 0; // the transfer that the step before asked for began, ended
};
/// What a step reports of a layer.
struct alignas(16) LagLayer {
    LagMarks marks;
    std::uint64_t waitedNs = 0; // how long the end of the step waited for transfers of other layers
    std::uint64_t loads = 0;    // blocks of the layer's transfer
};

struct SettleArgs {
    AttentionShape shape;
    int rows = 0, firstSequence = 0; // row r is sequence firstSequence + r
    int capacity = 0, maxBlocks = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    /// The step's candidates. If `next` is set, they are reported and then replaced by the blocks of `next` and, where
    /// the next token begins a block, by that block too. Their `heads` become those of `next`; where `next` has none,
    /// `predicted` becomes -1.
    BlockLists candidates;
    BlockLists next;
    // [2] counts of the moves that fetch `next`: copied from counts to published, and counts cleared
    std::uint32_t *counts = nullptr, *published = nullptr;
    // What follows is for the recorder; head null: nobody records.
    const std::uint16_t* chosen = nullptr; // the chosen tokens, see CandidateAttentionArgs
    const __nv_bfloat16* q = nullptr;      // [rows, queryHeads*dim], from which the scores are made
    DeviceIndex index;
    std::uint32_t* previous = nullptr;   // [sequence*kvHeads, (maxBlocks + 31)/32] blocks selected in the step before
    std::uint8_t* hasPrevious = nullptr; // [sequence*kvHeads]
    SelectionHead* head = nullptr;       // [rows, kvHeads] of the blocks that have chosen tokens
    PackedBlock* blocks = nullptr;       // [rows, kvHeads, capacity] or null
    float* scores = nullptr;             // [rows, kvHeads, capacity] sums over the group of bounds of q.k; or null
    LagHead* lag = nullptr;              // [rows, kvHeads] or null: the method does not lag
    LagLayer* layer = nullptr;           // or null
    const LagMarks* marks = nullptr;     // copied to `layer`
};
/// Reports what a step has chosen of its candidates, and makes the next step's candidates of `next`.
void settleCandidates(const Launch& launch, const SettleArgs& args);

/// A kernel at the end of a step, after the transfers. If a transfer of the first `layers` layers has ended after
/// `ready`, the time at which all else was done, writes how long after `ready` this kernel begins; else 0. waitedNs
/// null: writes nothing, and only waits for earlier kernels.
void reportWait(const Launch& launch, const LagMarks* marks, int layers, const std::uint64_t* ready,
                std::uint64_t* waitedNs);

/// share [rows, kvHeads] = the share of the attention over all tokens that the attended tokens have, mean over the
/// group. attended [rows, queryHeads]: log sums of what was attended. blocks [rows, queryHeads, maxBlocks]: log sums of
/// every block up to the position, from the first one in the window on.
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
