// Sessions that several benchmarks use.
#pragma once

#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"

#include <algorithm>
#include <vector>

namespace kvscope::bench {

inline std::vector<std::int32_t> needlePrompt(const Model& model, int tokens) {
    NeedleOptions options;
    options.tokens = tokens;
    return model.tokenizer().encode(makeNeedlePrompt(model.tokenizer(), options).text);
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
