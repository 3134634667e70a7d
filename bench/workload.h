// Sessions that several benchmarks use.
#pragma once

#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace kvscope::bench {

inline std::vector<std::int32_t> needlePrompt(const Model& model, int tokens) {
    NeedleOptions options;
    options.tokens = tokens;
    return model.tokenizer().encode(makeNeedlePrompt(model.tokenizer(), options).text);
}

/// Ids drawn alike from the whole vocabulary.
inline std::vector<std::int32_t> randomPrompt(int tokens, int vocab, unsigned seed) {
    std::mt19937 draw(seed);
    std::uniform_int_distribution<std::int32_t> id(0, vocab - 1);
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens));
    for (std::int32_t& token : prompt) token = id(draw);
    return prompt;
}

inline SessionOptions greedy(const std::string& method, int newTokens) {
    SessionOptions options;
    options.method = method;
    options.maxNewTokens = newTokens;
    options.stopAtEos = false;
    return options;
}

inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0 : values[values.size() / 2];
}

} // namespace kvscope::bench
