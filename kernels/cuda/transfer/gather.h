// Stage offloading of all methods whose blocks pass through slots: moves the blocks that a selection has listed between
// the host store and the slots.
#pragma once

#include "kernels/cuda/device/block_moves.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct GatherArgs {
    AttentionShape shape;
    MoveList moves;
    const __nv_bfloat16* store = nullptr; // pinned host memory, as the device sees it
    __nv_bfloat16* storeOut = nullptr;    // the same, for write-backs
    __nv_bfloat16* pool = nullptr;
    __nv_bfloat16* newest = nullptr; // [rows*kvHeads] the block that is being written of each head; see gatherQuantised
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
    int slots = 0;                 // slots of a head; needed with `late` and `newest`
    /// Bytes of a block on the host and in a slot, where both hold full blocks in a format of their own; 0: bf16
    /// blocks.
    int formatBytes = 0;
    int bytesOfBlock() const { return formatBytes > 0 ? formatBytes : int(blockBytes(shape)); }
};

/// Moves the listed blocks through rings of bulk copies in shared memory: loads from the host store into slots,
/// write-backs from slots into the host store. `blocks` is the number of thread blocks; 4 saturate a PCIe 5 link.
void gatherBlocks(const Launch& launch, const GatherArgs& args, int blocks = 4);

} // namespace kvscope::cuda
