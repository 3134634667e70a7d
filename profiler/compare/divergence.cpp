#include "profiler/compare/divergence.h"

#include "base/utf8.h"

#include <algorithm>
#include <vector>

namespace kvscope {
namespace {

/// Prompt and generated tokens in order of position.
std::vector<TokenRow> sequenceOf(const TraceReader& reader, int runId, int sequence) {
    std::vector<TokenRow> tokens = reader.prompt(runId, sequence);
    for (TokenRow& token : tokens) token.step = -1;
    for (TokenRow& token : reader.tokens(runId, sequence)) tokens.push_back(std::move(token));
    std::stable_sort(tokens.begin(), tokens.end(),
                     [](const TokenRow& x, const TokenRow& y) { return x.position < y.position; });
    return tokens;
}

std::string textOf(const std::vector<TokenRow>& tokens, std::size_t first, std::size_t last) {
    std::string bytes;
    for (std::size_t i = first; i < std::min(last, tokens.size()); ++i) bytes += tokens[i].bytes;
    return toValidUtf8(bytes);
}

} // namespace

TokenComparison compareTokens(const TraceReader& a, int runA, const TraceReader& b, int runB, int sequence,
                              int contextTokens) {
    const auto left = sequenceOf(a, runA, sequence), right = sequenceOf(b, runB, sequence);
    TokenComparison result;
    result.lengthA = int(left.size());
    result.lengthB = int(right.size());
    const std::size_t shorter = std::min(left.size(), right.size());
    std::size_t at = 0;
    while (at < shorter && left[at].id == right[at].id && left[at].position == right[at].position) ++at;
    result.common = int(at);
    if (at == shorter) return result;
    const auto context = std::size_t(std::max(contextTokens, 1));
    TokenDifference& first = result.first.emplace();
    first.position = left[at].position;
    first.stepA = left[at].step;
    first.stepB = right[at].step;
    first.inPrompt = first.stepA < 0 || first.stepB < 0;
    first.idA = left[at].id;
    first.idB = right[at].id;
    first.before = textOf(left, at > context ? at - context : 0, at);
    first.afterA = textOf(left, at, at + context);
    first.afterB = textOf(right, at, at + context);
    return result;
}

} // namespace kvscope
