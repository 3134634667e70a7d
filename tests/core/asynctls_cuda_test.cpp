// AsyncTLS on both backends: the same prompt, the same tokens fed, and choices that differ only where bf16 and float32
// put two scores in another order; and what its records say of the blocks that travel between steps.
#include "tests/core/fed_sessions.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Settings = std::vector<std::pair<std::string, std::string>>;

struct Case {
    const char* name;
    Settings settings;
    int extraSlots = 0; // beyond what the method needs, replaced by last use
    bool lags = true;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

SessionOptions optionsOf(const Case& c, Backend backend, int newTokens) {
    return test::methodOptions("asynctls", c.settings, backend, newTokens);
}

class AsyncTlsOnCuda : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        if (!test::onCuda()) GTEST_SKIP() << "compares the GPU with the CPU";
    }
    static CollectingSink runFed(Backend backend, const test::Tokens& prompt, const test::Tokens& fed) {
        SessionOptions options = optionsOf(GetParam(), backend, int(fed.size()) + 1);
        if (GetParam().extraSlots > 0) options.deviceKvBlocks = 10 + GetParam().extraSlots;
        return test::runFed(test::embeddedModel(), {prompt}, fed, options);
    }
};

TEST_P(AsyncTlsOnCuda, ChoosesAndFetchesWhatTheCpuDoes) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const test::Tokens prompt = test::randomTokens(1200, random), fed = test::randomTokens(90, random);
    const CollectingSink cpu = runFed(Backend::Cpu, prompt, fed), gpu = runFed(Backend::Cuda, prompt, fed);
    ASSERT_EQ(cpu.steps.size(), gpu.steps.size());
    struct Totals {
        double hits = 0, misses = 0, used = 0, wasted = 0, stale = 0, h2d = 0, kept = 0, mass = 0;
    } mine, theirs;
    double overlap = 0, firstLayer = 0;
    int count = 0, firstCount = 0;
    for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
        const StepRecord &a = cpu.steps[step], &b = gpu.steps[step];
        ASSERT_EQ(a.selections.size(), b.selections.size());
        std::vector<int> travelled(b.layers.size(), 0);
        for (std::size_t i = 0; i < a.selections.size(); ++i) {
            const SelectionRecord &x = a.selections[i], &y = b.selections[i];
            SCOPED_TRACE(::testing::Message() << "step " << step << ", layer " << x.layer << ", head " << x.kvHead);
            ASSERT_EQ(x.layer, y.layer);
            ASSERT_EQ(x.kvHead, y.kvHead);
            EXPECT_EQ(x.predicted, y.predicted);
            EXPECT_EQ(x.kept < 0, y.kept < 0);
            EXPECT_EQ(x.stale < 0, y.stale < 0);
            ASSERT_EQ(y.hits + y.misses, y.selected);
            EXPECT_LE(y.late, y.misses + y.wasted);
            std::vector<std::int32_t> common;
            const auto ours = test::idsOf(a, x), others = test::idsOf(b, y);
            ASSERT_TRUE(std::is_sorted(others.begin(), others.end()));
            std::set_intersection(ours.begin(), ours.end(), others.begin(), others.end(), std::back_inserter(common));
            const double share = double(common.size()) / std::max(x.selected, y.selected);
            overlap += share, ++count;
            if (x.layer == 0) firstLayer += share, ++firstCount;
            for (const PackedBlock block : b.blocksOf(y)) ASSERT_EQ(block.origin(), Origin::TokenLevel);
            travelled[std::size_t(y.layer)] += y.misses + y.wasted;
            for (const auto& [to, s] : {std::pair{&mine, &y}, {&theirs, &x}}) {
                to->hits += s->hits, to->misses += s->misses, to->used += s->used, to->wasted += s->wasted;
                to->stale += s->stale, to->kept += std::max(0, s->kept), to->mass += double(s->mass);
            }
        }
        for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
            const LayerRecord &x = a.layers[layer], &y = b.layers[layer];
            // Whatever was asked for is a miss if it is attended, and wasted if not.
            if (GetParam().lags) {
                EXPECT_EQ(y.h2dBlocks, travelled[layer]) << "step " << step << ", layer " << layer;
            } else {
                EXPECT_GE(y.h2dBlocks, travelled[layer]) << "step " << step << ", layer " << layer;
            }
            EXPECT_EQ(y.h2dBytes, y.h2dBlocks * gpu.info.blockBytes);
            EXPECT_EQ(x.d2hBlocks, y.d2hBlocks);
            EXPECT_LE(y.exposedNs, y.transferNs);
            mine.h2d += y.h2dBlocks, theirs.h2d += x.h2dBlocks;
        }
    }
    ASSERT_GT(count, 0);
    const auto print = [](const char* name, const Totals& t) {
        std::printf("  %s: hits %.0f, misses %.0f, used %.0f, wasted %.0f, stale %.0f, loaded %.0f, kept %.0f\n", name,
                    t.hits, t.misses, t.used, t.wasted, t.stale, t.h2d, t.kept);
    };
    std::printf("%s: overlap %.4f, in the first layer %.4f, mass %.5f and %.5f\n", GetParam().name, overlap / count,
                firstLayer / firstCount, mine.mass / count, theirs.mass / count);
    print("GPU", mine), print("CPU", theirs);
    // A prompt without sense has many blocks whose bounds are nearly equal: bf16 decides a few of them otherwise, and a
    // block that one backend has and the other has not may differ for some steps.
    EXPECT_GE(firstLayer / firstCount, 0.97);
    EXPECT_GE(overlap / count, 0.95);
    EXPECT_NEAR(mine.mass / count, theirs.mass / count, 0.01);
    const double selected = theirs.hits + theirs.misses;
    EXPECT_NEAR(mine.misses / selected, theirs.misses / selected, 0.03);
    EXPECT_NEAR(mine.wasted / selected, theirs.wasted / selected, 0.03);
    EXPECT_NEAR(mine.stale / selected, theirs.stale / selected, 0.03);
    EXPECT_NEAR(mine.used / selected, theirs.used / selected, 0.03);
    EXPECT_NEAR(mine.h2d / selected, theirs.h2d / selected, 0.04);
    EXPECT_GT(mine.h2d, 0);
    EXPECT_NEAR(mine.kept / selected, theirs.kept / selected, 0.03);
}

TEST_P(AsyncTlsOnCuda, TransfersChangeNoResult) {
    std::mt19937 random{std::random_device{}()};
    const std::vector<test::Tokens> prompts{test::randomTokens(1700, random), test::randomTokens(128, random),
                                            test::randomTokens(900, random)};
    test::expectTransfersChangeNothing(prompts, optionsOf(GetParam(), Backend::Cuda, 150));
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, AsyncTlsOnCuda,
    ::testing::Values(Case{"lag", {{"k_b", "8"}, {"k_t", "128"}}},
                      Case{"lag, forced blocks, spare slots",
                           {{"k_b", "8"}, {"k_t", "96"}, {"sink_blocks", "1"}, {"window_blocks", "2"}},
                           4},
                      Case{"lag, labels of 16 bits",
                           {{"k_b", "6"}, {"k_t", "64"}, {"d_c", "16"}, {"label_bits", "16"}}},
                      Case{"lag, small blocks", {{"k_b", "20"}, {"k_t", "200"}, {"block_size", "16"}}},
                      Case{"no lag", {{"k_b", "8"}, {"k_t", "128"}, {"lag", "0"}}, 0, false}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
