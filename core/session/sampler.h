// Greedy and stochastic choice of the next token.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvscope {

/// Neither infinite nor NaN.
bool allFinite(std::span<const float> logits);

/// Largest logit; equal ones: the lower id.
std::int32_t argMax(std::span<const float> logits);

/// One sequence's random stream; the same seed and logits give the same tokens on every machine.
class Sampler {
public:
    Sampler(const Sampling& sampling, int sequence);
    /// Temperature, then top-k, then top-p, then one draw; greedy at temperature 0.
    std::int32_t sample(std::span<const float> logits);
    /// The next number of the stream, in [0, 1): what one sample() uses.
    double draw() { return double(random_() >> 11) * 0x1p-53; }

private:
    Sampling sampling_;
    std::mt19937_64 random_;
    std::vector<std::pair<float, std::int32_t>> candidates_;
};

} // namespace kvscope
