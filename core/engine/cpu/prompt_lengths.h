// How long the prompts of a session are, for parts that ask for lengths alone.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

/// @return the number of tokens of each prompt
inline std::vector<int> lengthsOf(const std::vector<std::vector<std::int32_t>>& prompts) {
    std::vector<int> lengths;
    for (const auto& prompt : prompts) lengths.push_back(int(prompt.size()));
    return lengths;
}

} // namespace kvscope
