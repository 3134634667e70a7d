// Stage sample: chooses the next token, greedily or at random by temperature, top-k, top-p and one draw for each row.
// Nothing is sorted.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstdint>

namespace kvscope::cuda {

/// With temperature 0 the choice is greedy and the other fields are ignored.
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
    std::int32_t* record = nullptr; // [rows] out: the chosen token, or kNoToken; null: not wanted
    std::uint64_t *mark = nullptr, *endMark = nullptr;
    SampleArgs sampling;
    /// [rows] device memory: how each row's token is chosen, in place of `sampling`; draws and firstPosition are the
    /// row's own. `sampling.temperature` above 0 says that some of the rows choose at random.
    const SampleArgs* each = nullptr;
};

/// In `record` instead of a token, where a logit of the row is infinite or NaN. `next` then holds token 0, so that a
/// step that was launched ahead stays within the vocabulary.
inline constexpr std::int32_t kNoToken = -1;

/// Greedy: the token of the largest logit, of equal ones the lower id. At random: the token that core/session/sampler.h
/// chooses from the same logits and the same draw. Logits are ranked exactly, equal ones by id. Weights are
/// exp((logit - largest) / temperature) within 3e-7. They are summed as integers in units of 2^-44, so that any order
/// gives the same sum and runs repeat. The token can differ from the sampler's only if the draw lies within 1e-6 of a
/// border between two tokens.
void nextTokens(const Launch& launch, const NextTokenArgs& args);

} // namespace kvscope::cuda
