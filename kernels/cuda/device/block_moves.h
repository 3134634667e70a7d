// Stage offloading: the lists by which a selection tells a gather which blocks to move, and what both report of a KV
// head.
#pragma once

#include <cstdint>

namespace kvscope::cuda {

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

} // namespace kvscope::cuda
