// Stage sample of a denoising forward: what every masked position would become, how sure that is, and which positions
// are written.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

namespace kvscope::cuda {

/// What a masked position would become.
struct BlockCandidate {
    double confidence = 0; // its probability
    double entropy = 0;    // of the distribution, in nats
    std::int32_t id = -1;  // the largest logit, of equal ones the lower id; -1: a logit is infinite or NaN
    std::int32_t none = 0;
    double second = 0; // the second largest probability; 0: one id alone is allowed
};

struct CandidateArgs {
    int rows = 0, block = 0, vocab = 0;
    const BlockRow* table = nullptr;       // [rows]
    const std::uint64_t* masked = nullptr; // [rows] positions that have a candidate
    const float* logits = nullptr;         // [rows*block, vocab]
    const std::uint8_t* allowed = nullptr; // [vocab] 0: counts as if its logit were -inf
    BlockCandidate* candidates = nullptr;  // [rows*block] out, of masked positions
    std::uint64_t* mark = nullptr;
};
/// Candidates at temperature 0: the plain softmax over the allowed ids.
void chooseCandidates(const Launch& launch, const CandidateArgs& args);

struct UnmaskArgs {
    int rows = 0, block = 0;
    const BlockRow* table = nullptr;            // [rows] BlockRow::writes of each are written
    const BlockCandidate* candidates = nullptr; // [rows*block]
    bool leftmost = false;           // the leftmost are written; else those of most confidence, of equal ones the lower
    std::uint64_t* masked = nullptr; // [rows] in and out
    std::int32_t* ids = nullptr;     // [rows*block] in and out
    std::int32_t* record = nullptr;  // [rows*block] out: the same ids
};
/// Writes candidates where a strategy counts them, so that the next forward needs nothing from the host.
void writeCandidates(const Launch& launch, const UnmaskArgs& args);

} // namespace kvscope::cuda
