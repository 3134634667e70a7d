// The random choice of the next token, without a sort: temperature, top-k, top-p and one draw per row.
#pragma once

#include "kernels/cuda/check.h"

#include <cstdint>

namespace kvscope::cuda {

/// temperature 0: greedy, and the rest is ignored.
struct SampleArgs {
    double temperature = 0, topP = 1;
    int topK = 0;                                // 0: all
    const double* draws = nullptr;               // [rows, drawsPerRow] uniform in [0, 1)
    const std::int32_t* firstPosition = nullptr; // [rows] the position whose logits take the row's first draw
    int drawsPerRow = 0;
};

struct NextTokenArgs {
    const float* logits = nullptr; // [rows, vocab]
    int rows = 0, vocab = 0;
    std::int32_t* next = nullptr;     // [rows] fed in the next step
    std::int32_t* position = nullptr; // [rows], advanced by one when active
    const std::uint8_t* active = nullptr;
    std::int32_t* record = nullptr; // [rows] pinned: what was chosen, or kNoToken
    std::uint64_t *mark = nullptr, *endMark = nullptr;
    SampleArgs sampling;
};

/// In `record` instead of a token, where a logit of the row is infinite or NaN. `next` then holds token 0, so that a
/// step that was launched ahead stays within the vocabulary.
inline constexpr std::int32_t kNoToken = -1;

/// Greedy: the largest logit, of equal ones the lower id. Else the token that core/session/sampler.h chooses from the
/// same logits and the same draw: logits are ranked exactly, equal ones by id. Weights are exp((logit - largest) /
/// temperature) within 3e-7, summed as integers in units of 2^-44, so the order of summing does not matter and runs
/// repeat; the token can differ from the sampler's only where the draw falls within 1e-6 of a border between two
/// tokens.
void nextTokens(const Launch& launch, const NextTokenArgs& args);

} // namespace kvscope::cuda
