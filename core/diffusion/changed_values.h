// dLLM-Cache's choice in one layer: which tokens of the canvas are computed anew, by how much their values changed. No
// device: numbers in, numbers out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// The cosine of the angle between a token's values now and before, over all KV heads together. A vector shorter than
/// 1e-8 counts as that long. Closer to 1 than 1e-12 it is 1: the values are the same numbers, computed another time.
double likeness(std::span<const float> now, std::span<const float> before);

/// The `count` tokens of least likeness, ascending; values: the likeness of each; equal ones: the lower. count: at most
/// as many as there are.
std::vector<std::int32_t> leastAlike(std::span<const double> values, int count);

} // namespace kvscope
