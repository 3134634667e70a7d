// Quest with group=per_query_head: every query head chooses blocks for itself. The device holds the union of the
// choices of a KV head's query heads, and each query head attends to its own blocks among these.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"
#include "kernels/packed_block.h"

#include <cstdint>

namespace kvscope::cuda {

struct UniteBlocksArgs {
    AttentionShape shape;
    int rows = 0, maxBlocks = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    // The choice of every query head, as SelectRecord::blocks and scores hold it.
    const PackedBlock* blocks = nullptr; // [rows, queryHeads, capacity]
    const float* scores = nullptr;
    const std::int32_t* count = nullptr; // [rows, queryHeads]
    int capacity = 0;
    // The union, as SelectArgs::chosen takes it, and the best score that any head gives a block.
    // [rows, kvHeads, capacity]
    PackedBlock* chosen = nullptr;
    float* chosenScores = nullptr;
    std::int32_t* chosenCount = nullptr;
    std::int32_t* places = nullptr; // [rows, queryHeads, capacity] which entry of the union a head's block is
};
/// Unites the choices of each KV head's query heads.
void uniteBlocks(const Launch& launch, const UniteBlocksArgs& args);

/// Lists the slots of every query head's blocks, taken from the slots of the union's blocks.
struct HeadSlotsArgs {
    AttentionShape shape;
    int rows = 0, capacity = 0;
    const std::uint8_t* active = nullptr;      // [rows] or null
    const std::int32_t* places = nullptr;      // [rows, queryHeads, capacity]
    const std::int32_t* count = nullptr;       // [rows, queryHeads]
    const std::int32_t* unitedSlots = nullptr; // [rows, kvHeads, capacity]
    std::int32_t* slots = nullptr;             // [rows, queryHeads, capacity]
};
void takeHeadSlots(const Launch& launch, const HeadSlotsArgs& args);

} // namespace kvscope::cuda
