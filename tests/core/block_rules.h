// What must hold of every run over diffusion blocks, whatever weights, method and backend are.
#pragma once

#include "tests/core/diffusion_model.h"

#include <cstdint>
#include <map>
#include <vector>

namespace kvscope::test {

/// Expects of a run with one prompt that no end of text stops: every block has one clean forward, every other forward
/// writes, and no token that is known is written again.
inline void expectBlockRules(const DenoisedRun& run, const std::vector<std::int32_t>& prompt, int block,
                             int newTokens) {
    const int length = int(prompt.size());
    std::map<int, int> clean;
    std::map<int, std::int32_t> known;
    for (int i = 0; i < length; ++i) known[i] = prompt[std::size_t(i)];
    for (const StepRecord& step : run.steps) {
        if (step.denoise.empty()) continue;
        const DenoiseForward& forward = step.denoise.forwards.front();
        clean[forward.block] += forward.final;
        EXPECT_EQ(forward.written > 0, !forward.final);
        EXPECT_EQ(step.tokens, forward.written);
        for (const DenoiseToken& token : step.denoise.tokens) {
            const auto at = known.find(token.position);
            EXPECT_EQ(at == known.end(), token.candidate >= 0);
            if (at != known.end()) {
                EXPECT_EQ(token.id, at->second);
            }
            if (token.written) known[token.position] = token.candidate;
        }
    }
    for (const auto& [number, count] : clean) EXPECT_EQ(count, 1) << number;
    EXPECT_EQ(int(clean.size()), (length + newTokens + block - 1) / block - length / block);
    EXPECT_EQ(run.generated[0].size(), std::size_t(newTokens));
}

} // namespace kvscope::test
