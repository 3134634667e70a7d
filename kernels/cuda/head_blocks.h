// Blocks that every query head chooses for itself: what the device holds of a KV head is their union, and each query
// head attends to its own among them (Quest without a group).
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/kv_shape.h"

#include <cstdint>

namespace kvscope::cuda {

struct UniteBlocksArgs {
    AttentionShape shape;
    int rows = 0, maxBlocks = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    // Of every query head, as SelectArgs::recordBlocks and recordScores have them.
    const std::uint32_t* blocks = nullptr; // [rows, queryHeads, capacity]
    const float* scores = nullptr;
    const std::int32_t* count = nullptr; // [rows, queryHeads]
    int capacity = 0;
    // The union as SelectArgs::chosen takes it, with the best score of any head: [rows, kvHeads, capacity]
    std::uint32_t* chosen = nullptr;
    float* chosenScores = nullptr;
    std::int32_t* chosenCount = nullptr;
    std::int32_t* places = nullptr; // [rows, queryHeads, capacity] where a head's blocks lie in the union
};
void uniteBlocks(const Launch& launch, const UniteBlocksArgs& args);

/// Slots of every query head's blocks, from those of the union.
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
