// Stage offloading where one pool of slots serves everything on a device: all rows, layers and KV heads. Says which of
// a layer's chosen blocks have a slot, which blocks leave, and lists the loads. The least recently selected block
// leaves first, and never one that the layer selects now. core/serve/slot_pool.h has the same rule on the host.
#pragma once

#include "kernels/cuda/device/block_moves.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/packed_block.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// What a pool counts. The log is a ring: positions only rise, and `tail` is the oldest that may still count.
struct PoolCounts {
    std::int64_t head = 0, tail = 0; // of the log
    std::int32_t used = 0, free = 0; // slots
    std::uint32_t failed = 0;        // 1: a block got no slot, and the step is worthless
};

/// Device memory of a pool. The log has the slots in the order in which their blocks were selected; an entry counts
/// while lastAt of its slot names its position, so that the oldest entry that counts is the block that leaves next.
struct PoolState {
    int slots = 0;
    int entries = 0;                // of the log, a power of two; at least twice the slots and the blocks of one layer
    std::int32_t* log = nullptr;    // [entries]
    std::int64_t* lastAt = nullptr; // [slots] -1: the slot is free
    std::int32_t** owner = nullptr; // [slots] the entry of PoolRow::slotOf that names the slot
    std::int32_t* free = nullptr;   // [slots] the first PoolCounts::free of them are free slots
    std::int32_t* filled = nullptr; // [rows*kvHeads] work space of one launch
    PoolCounts* counts = nullptr;
    __nv_bfloat16* blocks = nullptr; // [slots, block], and behind them the newest blocks of all rows
};

/// What the host says before a step.
struct PoolInputs {
    std::int32_t rows = 0;
    std::int64_t slots = 0; // how many may be used
};

/// One row in one layer. The newest block of a head lies outside of the pool's slots until it is full.
struct PoolRow {
    const std::int32_t* position = nullptr;                        // of the token that the step feeds
    int capacity = 0;                                              // of the row's lists
    const std::int32_t *listBlock = nullptr, *listCount = nullptr; // [kvHeads, capacity], [kvHeads] the choice
    std::int32_t* listSlot = nullptr;                              // [kvHeads, capacity] written for the attention
    std::int32_t* slotOf = nullptr; // [kvHeads, blocks] slot of each block of the row in this layer, -1 none
    int blocks = 0;
    int newest = 0;                           // slot of the first head's newest block; those of the others follow
    std::int64_t slotFirst = 0;               // what is added to a slot in lists of moves
    const std::int64_t* storeFirst = nullptr; // [kvHeads] first block in the host store, as BlockMove::store
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [kvHeads, dim] of the token
    MoveList moves;                                             // rows may share one
    SelectionHead* recordHead = nullptr; // [kvHeads] as a resident layer's choice wrote it; null: not recorded
    PackedBlock* recordBlocks = nullptr; // [kvHeads, capacity]; null: not recorded
};

struct PoolArgs {
    AttentionShape shape;
    int capacity = 0;           // most of any row
    bool valuesByToken = false; // as SelectSlots::valuesByToken
    PoolState state;
    const PoolInputs* inputs = nullptr; // device memory
    const PoolRow* rows = nullptr;      // device memory, [inputs->rows]; blocks are taken in this order
    std::uint64_t* mark = nullptr;
};

/// Empties the pool.
void clearPool(const Launch& launch, const PoolState& state);
/// One layer of a step: looks the choices of all rows up, gives slots to what is missing, places the new tokens, and
/// gives blocks that these fill a slot.
void lookUpInPool(const Launch& launch, const PoolArgs& args);
/// Gives back all slots that `slotOf` names, of `blocks` blocks, and empties it.
void releaseFromPool(const Launch& launch, const PoolState& state, std::int32_t* slotOf, int blocks);

} // namespace kvscope::cuda
