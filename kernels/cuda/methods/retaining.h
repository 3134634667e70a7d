// Locret's retaining heads (core/select/retaining_heads.h), and the lists of the tokens that are retained while a
// prompt is read.
#pragma once

#include "kernels/cuda/choice/token_choice.h"

namespace kvscope::cuda {

/// scores = silu(rows in^T) out^T for n tokens, float32.
struct RetainingArgs {
    int n = 0, inputs = 0, width = 0, kvHeads = 0;
    const float* rows = nullptr; // [n, inputs] query, key and value of all heads, before rotation
    const float* in = nullptr;   // [width, inputs]
    const float* out = nullptr;  // [kvHeads, width]
    float* hidden = nullptr;     // [n, width] scratch
    float* scores = nullptr;     // token i of head g: scores[i*tokenStride + g*headStride]
    std::int64_t tokenStride = 1, headStride = 0;
};
void scoreRetaining(const Launch& launch, const RetainingArgs& args);

/// Writes first, first + 1, .. at places [at, at + n) of every list; the counts become at + n.
void appendTokens(const Launch& launch, const TokenLists& to, int at, int first, int n);
/// Writes places [from, from + n) of `source` at places [at, at + n); the counts become at + n.
void appendPlaces(const Launch& launch, const TokenLists& to, int at, const TokenLists& source, int from, int n);
/// to[list, i] = scores[list, token i of the list], i < n. Scores are scoreStride apart, `to` like the lists.
void gatherScores(const Launch& launch, const TokenLists& lists, int n, const float* scores, std::int64_t scoreStride,
                  float* to);

} // namespace kvscope::cuda
