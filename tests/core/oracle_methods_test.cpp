// With the oracle every method records what share of the attention it held, those with a device tier of their own too:
// against a float64 softmax over every cached token.
#include "tests/core/method_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::MethodRun;

struct Case {
    const char* method;
    test::MethodSettings settings;
};

class OracleOf : public ::testing::TestWithParam<Case> {};

/// Which units are best is settled but for masses within 1e-6 of the last one's: float32 sums them in another order.
void expectRecall(const MethodRun::Head& head, const std::vector<double>& ofUnit) {
    std::vector<double> sorted = ofUnit;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double last = sorted[head.units.size() - 1];
    double surely = 0, atMost = 0;
    for (const std::int32_t id : head.units) {
        surely += ofUnit[std::size_t(id)] > last + 1e-6 ? 1 : 0;
        atMost += ofUnit[std::size_t(id)] > last - 1e-6 ? 1 : 0;
    }
    const double count = double(head.units.size());
    EXPECT_GE(double(head.record.recall), surely / count - 1e-6);
    EXPECT_LE(double(head.record.recall), atMost / count + 1e-6);
    EXPECT_NEAR(double(head.record.bestMass), std::accumulate(sorted.begin(), sorted.begin() + int(count), 0.0), 1e-4);
}

TEST_P(OracleOf, RecordsTheMassOfWhatIsAttendedAndHowMuchOfTheBestThatIs) {
    auto settings = GetParam().settings;
    settings.emplace_back("block_size", "16");
    const MethodRun run(GetParam().method, settings, {250, 24, 41, true, true});
    const int unit = run.spec().unitTokens();
    double least = 1;
    float leastRecall = 1;
    for (std::size_t step = 0; step < run.steps().size(); ++step) {
        const int position = run.position(step);
        for (int g = 0; g < MethodRun::kKvHeads; ++g) {
            const auto& head = run.steps()[step].heads[std::size_t(g)];
            double held = 0;
            std::vector<double> ofUnit(std::size_t(position / unit + 1), 0.0);
            for (int h = g * MethodRun::kGroup; h < (g + 1) * MethodRun::kGroup; ++h) {
                std::vector<double> logits;
                for (int t = 0; t <= position; ++t)
                    logits.push_back(run.scale() * std::inner_product(run.q(position, h),
                                                                      run.q(position, h) + MethodRun::kDim, run.k(t, g),
                                                                      0.0));
                const auto share = test::softmax(logits);
                for (int t = 0; t <= position; ++t)
                    ofUnit[std::size_t(t / unit)] += share[std::size_t(t)] / MethodRun::kGroup;
                for (const std::int32_t id : head.units)
                    for (int t = id * unit; t < std::min(position + 1, (id + 1) * unit); ++t)
                        held += share[std::size_t(t)] / MethodRun::kGroup;
            }
            ASSERT_NEAR(double(head.record.mass), held, 1e-4)
                << "step " << step << " head " << g; // float32 exponentials
            least = std::min(least, held);
            expectRecall(head, ofUnit);
            leastRecall = std::min(leastRecall, head.record.recall);
        }
    }
    EXPECT_LT(least, 0.98) << "a run that leaves something out";
    EXPECT_LT(leastRecall, 1.f) << "a run that does not choose as the exact attention would";
}

INSTANTIATE_TEST_SUITE_P(
    Methods, OracleOf,
    ::testing::Values(
        Case{"streaming", {{"window_blocks", "3"}}}, Case{"quest", {{"total_blocks", "6"}, {"skip_layers", "0"}}},
        Case{"infllmv2", {{"window_blocks", "2"}, {"total_blocks", "7"}, {"kernel_size", "8"}, {"kernel_stride", "4"}}},
        Case{"dma", {{"window_blocks", "2"}, {"total_blocks", "7"}, {"kernel_size", "8"}, {"kernel_stride", "4"}}},
        Case{"nosa",
             {{"window_blocks", "2"},
              {"total_blocks", "9"},
              {"select_blocks", "3"},
              {"kernel_size", "8"},
              {"kernel_stride", "4"}}},
        Case{"double-sparsity",
             {{"heavy_tokens", "40"}}}, // Its units are the candidate blocks: all of their tokens are taken.
        Case{"asynctls", {{"k_b", "6"}, {"k_t", "1000"}}},
        Case{"h2o", {{"heavy_tokens", "30"}, {"recent_tokens", "20"}}},
        Case{"snapkv", {{"capacity_tokens", "60"}, {"window_tokens", "8"}}},
        Case{"arkvale", {{"page_budget", "6"}, {"skip_layers", "0"}}}, Case{"dma-token", {{"budget_tokens", "40"}}},
        Case{"locret", {{"budget_tokens", "60"}, {"stabilizers", "20"}, {"prefill_chunk", "80"}, {"local_len", "10"}}},
        // These attend with keys of their own, rebuilt or unrotated; what they hold is measured with the model's.
        Case{"shadowkv", {{"rank", "24"}, {"budget_tokens", "40"}, {"outlier_tokens", "16"}, {"local_chunks", "2"}}},
        Case{"infllm", {{"init_tokens", "16"}, {"local_tokens", "40"}, {"topk_blocks", "3"}}}),
    [](const auto& parameter) {
        std::string name = parameter.param.method;
        std::replace(name.begin(), name.end(), '-', '_');
        return name;
    });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
