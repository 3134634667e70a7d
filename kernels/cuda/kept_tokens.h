// What methods that forget keep on the device: some tokens of each KV head, packed into blocks (token_pack.h) whose
// places are used again when a token goes. Their memory is their budget's, whatever the length of the sequence.
#pragma once

#include "kernels/cuda/token_choice.h"
#include "kernels/cuda/token_record.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Of one layer; heads are [sequence*kvHeads]. Places are in no order once one was used again.
struct KeptTokens {
    int capacity = 0, blocks = 0;      // of a head: places, blocks that have them
    __nv_bfloat16* packed = nullptr;   // [heads, blocks]
    std::int32_t* tokens = nullptr;    // [heads, capacity] whose place it is
    float* scores = nullptr;           // [heads, capacity] what each came with; NaN: nothing
    double* mass = nullptr;            // [heads, capacity] attention received so far; null: not counted
    float* bias = nullptr;             // [heads, blocks*blockSize]; null: the attention has none
    std::int32_t* count = nullptr;     // [heads] places in use
    std::int32_t* freePlace = nullptr; // [heads] a place in use whose token has gone, -1: none
    std::uint8_t* attended = nullptr;  // [heads] whether a step has attended to them
};

/// What is kept of one sequence's prompt: the chosen tokens, then [tailFirst, tailEnd). Keys, values and biases are
/// left to packTokens.
struct KeepPromptArgs {
    int kvHeads = 0, sequence = 0;
    TokenLists chosen;             // of its KV heads; tokens null: only the tail is kept
    const float* scores = nullptr; // by token, lists scoreStride apart, of those chosen; null: none
    std::int64_t scoreStride = 0;
    const double* mass = nullptr; // by token, lists massStride apart; with KeptTokens::mass
    std::int64_t massStride = 0;
    int tailFirst = 0, tailEnd = 0;
    KeptTokens kept;
};
void keepPrompt(const Launch& launch, const KeepPromptArgs& args);

/// A decode step's token finds its place: the free one, or the next, or that of the lowest score (of equals the newest
/// token's) where all are in use and its own is higher, or it is one of those that stay. Else it is not kept. One
/// thread block for each head.
struct KeepTokenArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr;                     // [rows]
    const std::uint8_t* active = nullptr;                       // [rows] or null
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim]
    const float* tokenScores = nullptr;                         // eviction scores by token: the score and the bias
    const std::int64_t* tokenFirst = nullptr;                   // [heads]
    bool scored = false;              // the token comes with its eviction score; else with NaN
    bool exponentiates = false;       // with exp of it
    const float* newScores = nullptr; // [rows, kvHeads] with these in its place
    int stays = 0; // so many of the latest tokens stay, the new one among them, whatever their scores
    KeptTokens kept;
    TokenChoiceRecord record; // of what is attended now, in the order of places
};
void keepToken(const Launch& launch, const KeepTokenArgs& args);

/// Frees the place of the token of least mass (of equals the newest), but for the last `recent` ones, where more than
/// heavy + recent are kept.
struct EvictArgs {
    int rows = 0, kvHeads = 0;
    const std::int32_t* position = nullptr;                 // [rows]
    const std::uint8_t* active = nullptr;                   // [rows] or null
    const std::int32_t *heavy = nullptr, *recent = nullptr; // [rows]
    KeptTokens kept;
};
void evictLeastMass(const Launch& launch, const EvictArgs& args);

/// to[i] = exp(from[i]) or from[i], of `lists` lists.
void copyScores(const Launch& launch, const float* from, std::int64_t fromStride, float* to, std::int64_t toStride,
                int lists, int length, bool exponentiate);

} // namespace kvscope::cuda
