// The best of float scores, per (row, KV head): the device form of select::bestTokens.
#pragma once

#include "kernels/cuda/check.h"

#include <cstdint>

namespace kvscope::cuda {

/// Tokens of some heads, each list with a count.
struct TokenLists {
    int lists = 0, capacity = 0;
    std::int32_t* tokens = nullptr; // [lists, capacity]
    std::int32_t* count = nullptr;  // [lists]
};

struct TokenChoiceArgs {
    int rows = 0, kvHeads = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    const float* scores = nullptr;        // [rows*kvHeads] lists, `stride` apart
    std::int64_t stride = 0;
    const std::int32_t* ids = nullptr; // lists like the scores': what each is of, ascending; null: its index
    // The length of a list, from the first of these that is set.
    const std::int32_t* length = nullptr;   // [rows, kvHeads]
    const std::int32_t* position = nullptr; // [rows] one less than the length
    int maxLength = 0;                      // of all lists without the two; else the longest, for the grid
    int wanted = 0;                         // how many; shorter lists are chosen whole
    const std::int32_t* fewer = nullptr;    // [1] so many instead, at most `wanted`; or null
    std::int32_t* tokens = nullptr;         // [rows, kvHeads, capacity] ascending
    float* tokenScores = nullptr;           // likewise; null: not wanted
    std::int32_t* count = nullptr;          // [rows, kvHeads]
    int capacity = 0;                       // at least `wanted`
    std::uint64_t* mark = nullptr;
};

/// Equal scores: the lower index; NaN counts as -inf. A list is shared by the thread blocks of a cluster, which keep
/// it in shared memory and find the last chosen score digit by digit, without a sort.
void chooseTokens(const Launch& launch, const TokenChoiceArgs& args);

} // namespace kvscope::cuda
