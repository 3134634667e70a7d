// InfLLM-V2 with the softmax's sum estimated from coarser pooled keys (methods 1.3), against a plain reference in
// float64.
#include "tests/core/method_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::expectBest;
using test::MethodRun;
constexpr int kDim = MethodRun::kDim, kGroup = MethodRun::kGroup;

/// scale * q.(mean key of tokens [first, first + count))
double logit(const MethodRun& run, int position, int head, int first, int count) {
    double sum = 0;
    for (int t = first; t < first + count; ++t)
        for (int c = 0; c < kDim; ++c)
            sum += double(run.q(position, head)[c]) * double(run.k(t, head / kGroup)[c]) / count;
    return sum * run.scale();
}

/// Block scores of a KV head: windows of 32 tokens every 16, blocks of 64, denominators over windows of `size` every
/// `stride`.
std::vector<double> blockScores(const MethodRun& run, int position, int g, int size, int stride) {
    const int n = position + 1;
    std::vector<double> blocks(std::size_t(position / 64 + 1), -std::numeric_limits<double>::infinity());
    std::map<int, double> windows;
    for (int h = g * kGroup; h < (g + 1) * kGroup; ++h) {
        double sum = 0;
        for (int at = 0; at + size <= n; at += stride) sum += std::exp(logit(run, position, h, at, size));
        for (int at = 0; at + 32 <= n; at += 16) windows[at] += std::exp(logit(run, position, h, at, 32)) / sum;
    }
    for (const auto& [at, score] : windows)
        for (int block = at / 64; block <= std::min(position, at + 31) / 64; ++block)
            blocks[std::size_t(block)] = std::max(blocks[std::size_t(block)], score);
    return blocks;
}

TEST(CompressedLse, DividesByTheSumOverFourTimesCoarserKeys) {
    const MethodRun run("infllmv2", {{"total_blocks", "7"}, {"window_blocks", "1"}, {"lse", "compressed"}},
                        {1100, 90, 41});
    int other = 0; // choices that the exact sums would not make
    for (std::size_t step = 0; step < run.steps().size(); step += 3)
        for (int g = 0; g < MethodRun::kKvHeads; ++g) {
            const int position = run.position(step), current = position / 64;
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            const auto coarse = blockScores(run, position, g, 128, 64), exact = blockScores(run, position, g, 32, 16);
            std::vector<std::int32_t> chosen, candidates;
            std::vector<double> scores, exactScores;
            for (std::size_t i = 0; i < head.units.size(); ++i)
                if (head.origins[i] == Origin::QueryAware) chosen.push_back(head.units[i]);
            for (int b = 1; b < current - 1; ++b) {
                candidates.push_back(b);
                scores.push_back(coarse[std::size_t(b)]);
                exactScores.push_back(exact[std::size_t(b)]);
            }
            expectBest(chosen, candidates, scores, 4, 1e-5);
            std::sort(exactScores.begin(), exactScores.end());
            for (const std::int32_t b : chosen) other += exact[std::size_t(b)] < exactScores[exactScores.size() - 4];
        }
    EXPECT_GT(other, 0) << "the shortcut changes nothing here, so this would test nothing";
}

TEST(CompressedLse, IsExactWhileThereIsNoCoarseKey) {
    const auto unitsOf = [](const char* lse) {
        const MethodRun run("infllmv2",
                            {{"block_size", "16"},
                             {"kernel_size", "8"},
                             {"kernel_stride", "4"},
                             {"total_blocks", "3"},
                             {"sink_blocks", "0"},
                             {"window_blocks", "0"},
                             {"lse", lse}},
                            {20, 11, 42}); // 4 * 8 tokens make the first coarse key
        std::vector<std::vector<std::int32_t>> units;
        for (const auto& step : run.steps())
            for (const auto& head : step.heads) units.push_back(head.units);
        return units;
    };
    EXPECT_EQ(unitsOf("compressed"), unitsOf("exact"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
