// Chooses the next token from logits, greedily or by a random draw.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvscope {

/// Whether no logit is infinite or NaN.
bool allFinite(std::span<const float> logits);

/// The id of the largest logit; of equal ones the lowest id.
std::int32_t argMax(std::span<const float> logits);

/// Samples the tokens of one sequence from its own random stream. The same seed and logits give the same tokens on
/// every machine.
class Sampler {
public:
    Sampler(const Sampling& sampling, int sequence);
    /// Applies temperature, top-k and top-p, in this order, and draws once. With temperature 0 the choice is greedy.
    std::int32_t sample(std::span<const float> logits);
    /// The next number of the stream, in [0, 1). One call of sample() uses one number.
    double draw() { return double(random_() >> 11) * 0x1p-53; }

private:
    Sampling sampling_;
    std::mt19937_64 random_;
    std::vector<std::pair<float, std::int32_t>> candidates_;
};

} // namespace kvscope
