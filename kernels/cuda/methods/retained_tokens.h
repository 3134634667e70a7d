// H2O, SnapKV, Locret and DMA by token retain some tokens of each KV head and forget the others. The retained tokens
// are packed into blocks (token_pack.h). When a token goes, another takes its place. The memory is that of the budget,
// whatever the length of the sequence.
#pragma once

#include "kernels/cuda/choice/token_choice.h"
#include "kernels/cuda/methods/token_record.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// The retained tokens of one layer; heads are [sequence*kvHeads]. The tokens are in no order once a place has been
/// used again.
struct RetainedTokens {
    int capacity = 0, blocks = 0;      // of a head: places, and blocks that hold them
    __nv_bfloat16* packed = nullptr;   // [heads, blocks]
    std::int32_t* tokens = nullptr;    // [heads, capacity] the token in each place
    float* scores = nullptr;           // [heads, capacity] the score that a token came with; NaN: none
    double* mass = nullptr;            // [heads, capacity] attention received so far; null: not counted
    float* bias = nullptr;             // [heads, blocks*blockSize]; null: the attention has none
    std::int32_t* count = nullptr;     // [heads] places in use
    std::int32_t* freePlace = nullptr; // [heads] a place whose token has been given up; -1: none
    std::uint8_t* attended = nullptr;  // [heads] whether a step has attended to them
};

/// Enters the tokens that are retained of one sequence's prompt: the chosen ones, then [tailFirst, tailEnd). packTokens
/// copies their keys, values and biases.
struct RetainPromptArgs {
    int kvHeads = 0, sequence = 0;
    TokenLists chosen;             // of the sequence's KV heads; tokens null: only the tail is retained
    const float* scores = nullptr; // of the chosen tokens, indexed by token, lists scoreStride apart; null: none
    std::int64_t scoreStride = 0;
    const double* mass = nullptr; // indexed by token, lists massStride apart; where RetainedTokens::mass is set
    std::int64_t massStride = 0;
    int tailFirst = 0, tailEnd = 0;
    RetainedTokens retained;
};
void retainPrompt(const Launch& launch, const RetainPromptArgs& args);

/// Gives a decode step's token a place: the free one; else the next that was never used; else, where tokens come with
/// scores, the place of the token with the lowest score (of equal ones the newest). That token gives way if its score
/// is lower than the new token's, or if the newest tokens stay in any case. Otherwise the new token is not retained.
/// One thread block takes a head.
struct RetainTokenArgs {
    AttentionShape shape;
    int rows = 0;
    const std::int32_t* position = nullptr;                     // [rows]
    const std::uint8_t* active = nullptr;                       // [rows] or null
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim]
    const float* tokenScores = nullptr;                         // eviction scores by token; also the token's bias
    const std::int64_t* tokenFirst = nullptr;                   // [heads]
    bool scored = false;                                        // the token's score is its eviction score; else NaN
    bool exponentiates = false;                                 // the score is exp(eviction score)
    const float* newScores = nullptr; // [rows, kvHeads] scores in place of the eviction score; or null
    int stays = 0;                    // so many newest tokens stay whatever their scores, the new one among them
    RetainedTokens retained;
    TokenChoiceRecord record; // gets the tokens that this step attends, in the order of their places
};
void retainToken(const Launch& launch, const RetainTokenArgs& args);

/// Where a head has more than heavy + recent tokens, gives up the one of least mass (of equal ones the newest) that is
/// not among the last `recent` tokens: its place becomes the free one.
struct EvictArgs {
    int rows = 0, kvHeads = 0;
    const std::int32_t* position = nullptr;                 // [rows]
    const std::uint8_t* active = nullptr;                   // [rows] or null
    const std::int32_t *heavy = nullptr, *recent = nullptr; // [rows]
    RetainedTokens retained;
};
void evictLeastMass(const Launch& launch, const EvictArgs& args);

/// to[i] = exp(from[i]) or from[i], for `lists` lists.
void copyScores(const Launch& launch, const float* from, std::int64_t fromStride, float* to, std::int64_t toStride,
                int lists, int length, bool exponentiate);

} // namespace kvscope::cuda
