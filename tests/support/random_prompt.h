// Prompts without meaning, the same for the same seed: most tests need tokens and not what they say.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvscope::test {

/// Token 0, then ids from 2 to 4095, which every model of the tests has.
inline std::vector<std::int32_t> randomPrompt(int tokens, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> ids{0};
    while (int(ids.size()) < tokens) ids.push_back(std::int32_t(2 + random() % 4094));
    return ids;
}

/// Token 0, then ids from 2 to the last of the vocabulary. Prompts drawn from one `random` follow each other.
inline std::vector<std::int32_t> randomPrompt(int tokens, std::mt19937& random, int vocab) {
    std::uniform_int_distribution<std::int32_t> id(2, vocab - 1);
    std::vector<std::int32_t> ids{0};
    while (int(ids.size()) < tokens) ids.push_back(id(random));
    return ids;
}

} // namespace kvscope::test
