// Methods that choose single tokens, on both backends: the same prompt, the same tokens fed, and choices that differ
// only where bf16 and float32 put two scores in another order.
#include "tests/core/backend.h"

#include "base/error.h"
#include "core/session/engine.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

constexpr int kPromptTokens = 1200, kSteps = 40;

struct Case {
    const char* method;
    std::vector<std::pair<std::string, std::string>> settings;
    bool transfers;
    double firstLayer, mean; // least overlap
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.method; }

class TokenMethodsOnCuda : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        try {
            requireGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
        if (!findMethod(GetParam().method).runsOnCuda()) GTEST_SKIP() << "runs on the CPU backend";
    }
    CollectingSink run(Backend backend, const std::vector<std::int32_t>& prompt, const std::vector<std::int32_t>& fed) {
        static const auto model = Model::load(kDefaultModel);
        SessionOptions options;
        options.backend = backend;
        options.method = GetParam().method;
        options.settings = GetParam().settings;
        options.maxNewTokens = kSteps + 1;
        options.stopAtEos = false;
        options.twoInFlight = false;
        options.oracle = true;
        CollectingSink sink;
        DecodeSession session(model, {prompt}, options, sink);
        session.prefill();
        for (const std::int32_t token : fed) {
            session.forceNextTokens({token});
            EXPECT_TRUE(session.step());
        }
        session.end(RunStatus::Finished);
        return sink;
    }
};

TEST_P(TokenMethodsOnCuda, ChooseWhatTheCpuChooses) {
    std::random_device device;
    const unsigned seed = device();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<std::int32_t> prompt{0}, fed;
    while (int(prompt.size()) < kPromptTokens) prompt.push_back(std::int32_t(2 + random() % 4094));
    for (int i = 0; i < kSteps; ++i) fed.push_back(std::int32_t(2 + random() % 4094));
    const CollectingSink cpu = run(Backend::Cpu, prompt, fed), gpu = run(Backend::Cuda, prompt, fed);
    ASSERT_EQ(cpu.steps.size(), gpu.steps.size());
    double overlap = 0, firstLayer = 0, mass[2] = {}, recall[2] = {}, bestMass[2] = {};
    int count = 0, firstCount = 0;
    for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
        const StepRecord &a = cpu.steps[step], &b = gpu.steps[step];
        ASSERT_EQ(a.selections.size(), b.selections.size());
        for (std::size_t i = 0; i < a.selections.size(); ++i) {
            const SelectionRecord &x = a.selections[i], &y = b.selections[i];
            ASSERT_EQ(x.layer, y.layer);
            ASSERT_EQ(x.kvHead, y.kvHead);
            ASSERT_EQ(x.selected, y.selected) << "layer " << x.layer << ", head " << x.kvHead << ", step " << step;
            EXPECT_EQ(x.kept < 0, y.kept < 0);
            const double share = double(commonBlocks(a.blocksOf(x), b.blocksOf(y))) / x.selected;
            overlap += share, ++count;
            if (x.layer == 0) firstLayer += share, ++firstCount;
            for (int of = 0; of < 2; ++of) {
                const SelectionRecord& s = of == 0 ? x : y;
                mass[of] += double(s.mass), recall[of] += double(s.recall), bestMass[of] += double(s.bestMass);
            }
            EXPECT_LE(y.mass, y.bestMass + 1e-4f) << "no others of that number hold more";
            for (const PackedBlock token : b.blocksOf(y)) { // what a common token came from, and whether it was there
                const PackedBlock* same = findBlock(a.blocksOf(x), token.id());
                if (same == nullptr) continue;
                EXPECT_EQ(same->origin(), token.origin()) << token.id();
                EXPECT_EQ(same->hit(), token.hit()) << token.id();
            }
        }
        for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
            const LayerRecord &x = a.layers[layer], &y = b.layers[layer];
            EXPECT_EQ(x.selected, y.selected);
            // A head more or less may have chosen the newest token, which is at hand.
            EXPECT_NEAR(x.h2dBlocks, y.h2dBlocks, GetParam().transfers ? 2 : 0);
            EXPECT_EQ(y.h2dBytes > 0, GetParam().transfers);
            EXPECT_EQ(x.d2hBytes > 0, y.d2hBytes > 0);
            EXPECT_EQ(y.exposedNs > 0, GetParam().transfers);
        }
    }
    EXPECT_EQ(cpu.steps[0].layers[0].d2hBytes > 0, gpu.steps[0].layers[0].d2hBytes > 0);
    std::printf("%s: overlap %.4f, in the first layer %.4f\n", GetParam().method, overlap / count,
                firstLayer / firstCount);
    // The first layer's keys and queries differ by one rounding to bf16, those of the last by that of 8 layers. With
    // labels of four bits that rounding carries some channels over the border of a code, a fifteenth of their range;
    // the choice by the query of a step differs most, where many tokens of a prompt without sense score nearly the
    // same.
    EXPECT_GE(firstLayer / firstCount, GetParam().firstLayer);
    EXPECT_GE(overlap / count, GetParam().mean);
    // Tokens whose scores are close hold about as much.
    std::printf("mass %.4f and %.4f, of the best %.4f and %.4f, recall %.4f and %.4f\n", mass[0] / count,
                mass[1] / count, bestMass[0] / count, bestMass[1] / count, recall[0] / count, recall[1] / count);
    EXPECT_GT(mass[0], 0);
    EXPECT_NEAR(mass[1] / count, mass[0] / count, 0.01);
    EXPECT_NEAR(bestMass[1] / count, bestMass[0] / count, 0.01);
    EXPECT_NEAR(recall[1] / count, recall[0] / count, 0.02);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, TokenMethodsOnCuda,
    ::testing::Values(
        Case{"dma-token", {{"budget_tokens", "300"}}, false, 0.99, 0.97},
        Case{"snapkv", {{"capacity_tokens", "256"}}, false, 0.99, 0.97},
        Case{"h2o", {{"heavy_tokens", "150"}, {"recent_tokens", "100"}}, false, 0.99, 0.97},
        Case{"locret",
             {{"budget_tokens", "400"}, {"stabilizers", "100"}, {"prefill_chunk", "300"}, {"local_len", "50"}},
             false,
             0.99,
             0.97},
        Case{"double-sparsity", {{"heavy_tokens", "200"}}, true, 0.97, 0.92},
        Case{"double-sparsity", {{"heavy_tokens", "100"}, {"label_bits", "16"}}, true, 0.99, 0.95}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
