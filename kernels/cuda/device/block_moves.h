// Stage offloading: the lists by which a selection tells a gather which blocks to move, and what both report of a KV
// head.
#pragma once

#include <cstdint>

namespace kvscope::cuda {

/// One block to move between the tiers: its index in the host store of a layer, and that of its slot in the slot pool.
/// Both count from the layer's pointers, and may be negative where sequences have memory of their own.
struct BlockMove {
    std::int64_t store = 0, slot = 0;
};

constexpr int kStoreUnit = 16;

/// Blocks that one layer of one step moves. Counters are zero when the step begins.
struct MoveList {
    BlockMove* loads = nullptr;      // [capacity]
    BlockMove* writeBacks = nullptr; // [rows*kvHeads]
    std::uint32_t* counts = nullptr; // [0] loads, [1] write-backs
    /// 1: BlockMove::store counts blocks. Else it counts units of kStoreUnit bytes, so many to a block: host memory of
    /// different sequences begins at any page, and not at multiples of a block.
    int storeUnits = 1;
};

/// What a step reports of one (row, KV head).
struct SelectionHead {
    std::int32_t selected = 0, kept = -1, hits = 0, misses = 0; // selected 0: the head attended to everything
    std::uint32_t late = 0; // of the misses, those that the attention waited for; counted by the gather
};

} // namespace kvscope::cuda
