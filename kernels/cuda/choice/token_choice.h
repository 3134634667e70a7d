// InfiniGen by token, SnapKV, Locret, H2O, DMA by token and DSA choose tokens by this kernel: the best of float scores
// for each (row, KV head). The device form of select::bestTokens.
#pragma once

#include "kernels/cuda/device/check.h"

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
    const std::int32_t* ids = nullptr; // lists like the scores': the token of each score, ascending; null: its index
    // The first of these three that is set gives the length of a list.
    const std::int32_t* length = nullptr;   // [rows, kvHeads]
    const std::int32_t* position = nullptr; // [rows] one less than the length
    int maxLength = 0;                      // length of all lists; with length or position the largest length
    int wanted = 0;                         // tokens to choose; shorter lists are chosen whole
    const std::int32_t* fewer = nullptr;    // [1] in place of `wanted`, and at most that; or null
    std::int32_t* tokens = nullptr;         // [rows, kvHeads, capacity] ascending
    float* tokenScores = nullptr;           // likewise; null: not wanted
    std::int32_t* count = nullptr;          // [rows, kvHeads]
    int capacity = 0;                       // at least `wanted`
    std::uint64_t* mark = nullptr;
};

/// Chooses the tokens of the highest scores of every list. Equal scores: the lower index; NaN counts as -inf. The
/// thread blocks of a cluster share a list. They keep it in shared memory and find the lowest chosen score digit by
/// digit.
void chooseTokens(const Launch& launch, const TokenChoiceArgs& args);

} // namespace kvscope::cuda
