// Sparse-dLLM's choice for one block in one layer: which tokens outside the block keep their keys and values. No
// device: numbers in, numbers out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// The `kept` tokens of highest importance, ascending; equal ones: the lower. The importance of a token is the highest
/// among itself and the kernel / 2 tokens on each side of it. kernel: odd; kept: at most as many as there are.
std::vector<std::int32_t> keptTokens(std::span<const double> importance, int kernel, int kept);

} // namespace kvscope
