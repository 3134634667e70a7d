// InfiniGen by token on both backends: the same prompt, the same tokens fed.
#include "tests/core/fed_sessions.h"
#include "tests/core/files.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// The embedded model with every other weight one bf16 step away: as far from the model as rounding takes the GPU.
std::shared_ptr<const Model> roundedModel(unsigned seed) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("kvscope-rounded-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    std::filesystem::copy(test::kEmbeddedFolder, folder);
    std::string weights = test::contentsOf(folder / "model.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, weights.data(), sizeof(header));
    EXPECT_EQ(weights.find("\"F32\""), std::string::npos) << "the low bit of a bf16 number is meant";
    std::mt19937 random(seed);
    for (std::size_t at = sizeof(header) + header; at + 1 < weights.size(); at += 2)
        weights[at] = char(weights[at] ^ char(random() >> 31)); // numbers lie low byte first
    test::write(folder / "model.safetensors", weights);
    auto rounded = Model::load(folder.string());
    std::filesystem::remove_all(folder); // what is mapped stays
    return rounded;
}

SessionOptions optionsOf(Backend backend, const Settings& settings, int newTokens) {
    return test::methodOptions("infinigen-token", settings, backend, newTokens);
}

/// How far a run's choices are from another's.
struct Agreement {
    double overlap = 0, selected[2] = {}, kept[2] = {}, mass[2] = {}; // means over the selections
};
Agreement compare(const CollectingSink& one, const CollectingSink& other) {
    Agreement out;
    int count = 0;
    EXPECT_EQ(one.steps.size(), other.steps.size());
    for (std::size_t step = 1; step < std::min(one.steps.size(), other.steps.size()); ++step) {
        const StepRecord &a = one.steps[step], &b = other.steps[step];
        EXPECT_EQ(a.selections.size(), b.selections.size());
        for (std::size_t i = 0; i < std::min(a.selections.size(), b.selections.size()); ++i) {
            const SelectionRecord &x = a.selections[i], &y = b.selections[i];
            const int common = commonBlocks(a.blocksOf(x), b.blocksOf(y));
            out.overlap += double(common) / std::max(x.selected, y.selected), ++count;
            out.selected[0] += x.selected, out.selected[1] += y.selected;
            out.kept[0] += std::max(0, x.kept), out.kept[1] += std::max(0, y.kept);
            out.mass[0] += double(x.mass), out.mass[1] += double(y.mass);
        }
    }
    EXPECT_GT(count, 0);
    for (double* mean :
         {&out.overlap, &out.selected[0], &out.selected[1], &out.kept[0], &out.kept[1], &out.mass[0], &out.mass[1]})
        *mean /= std::max(1, count);
    return out;
}

class InfinigenTokenOnCuda : public ::testing::TestWithParam<Settings> {
protected:
    void SetUp() override {
        if (!test::onCuda()) GTEST_SKIP() << "compares the GPU with the CPU";
    }
};

TEST_P(InfinigenTokenOnCuda, ChoosesAndFetchesWhatTheCpuDoes) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const std::vector<test::Tokens> prompts{test::randomTokens(1300, random), test::randomTokens(400, random)};
    const test::Tokens fed = test::randomTokens(60, random);
    const auto run = [&](Backend backend, const std::shared_ptr<const Model>& loaded) {
        return test::runFed(loaded, prompts, fed, optionsOf(backend, GetParam(), int(fed.size()) + 1));
    };
    const CollectingSink cpu = run(Backend::Cpu, test::embeddedModel()),
                         gpu = run(Backend::Cuda, test::embeddedModel());
    ASSERT_EQ(cpu.steps.size(), gpu.steps.size());
    double moved = 0;
    for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
        const StepRecord &a = cpu.steps[step], &b = gpu.steps[step];
        ASSERT_EQ(a.selections.size(), b.selections.size());
        for (std::size_t i = 0; i < a.selections.size(); ++i) {
            const SelectionRecord &x = a.selections[i], &y = b.selections[i];
            ASSERT_EQ(x.layer, y.layer);
            ASSERT_EQ(x.sequence, y.sequence);
            ASSERT_EQ(x.kvHead, y.kvHead);
            EXPECT_EQ(x.kept < 0, y.kept < 0);
            EXPECT_EQ(y.hits, x.hits) << "the newest token is at hand";
            ASSERT_EQ(y.hits + y.misses, y.selected);
            const auto others = test::idsOf(b, y);
            ASSERT_TRUE(std::is_sorted(others.begin(), others.end()));
            EXPECT_EQ(others.back(), a.blocksOf(x).back().id());
            EXPECT_EQ(b.blocksOf(y).back().origin(), Origin::Window);
            EXPECT_EQ(b.blocksOf(y).front().origin(), Origin::TokenLevel);
        }
        for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
            const LayerRecord &x = a.layers[layer], &y = b.layers[layer];
            EXPECT_EQ(y.h2dBlocks, y.misses);
            EXPECT_EQ(x.d2hBytes > 0, y.d2hBytes > 0);
            EXPECT_LE(y.exposedNs, y.transferNs);
            EXPECT_EQ(y.transferNs > 0, y.misses > 0);
            EXPECT_EQ(y.misses > 0, x.misses > 0) << "layer " << layer;
            moved += y.h2dBlocks;
            for (const std::int64_t ns : y.stageNs) EXPECT_GE(ns, 0);
        }
    }
    EXPECT_GT(gpu.steps[0].layers.back().d2hBytes, 0);
    const Agreement found = compare(cpu, gpu);
    std::printf("overlap %.4f, selected %.1f and %.1f, kept %.1f and %.1f, mass %.4f and %.4f\n", found.overlap,
                found.selected[1], found.selected[0], found.kept[1], found.kept[0], found.mass[1], found.mass[0]);
    EXPECT_NEAR(found.mass[1], found.mass[0], 0.02) << "what the query heads attend to, each its own";
    EXPECT_NEAR(found.selected[1] / found.selected[0], 1, 0.03);
    EXPECT_NEAR(found.kept[1] / found.kept[0], 1, 0.05);
    // How many are near the best, and which of nearly equal ones, bf16 decides otherwise now and then. Where the
    // queries of the warm-up leave the directions open, it decides which of those are kept too: the GPU must then
    // choose as the CPU does with weights that are rounded otherwise.
    double wanted = 0.93;
    if (found.overlap < wanted) {
        const double rounded = compare(cpu, run(Backend::Cpu, roundedModel(seed))).overlap;
        std::printf("with other weights %.4f\n", rounded);
        wanted = std::max(0.7, rounded - 0.03);
    }
    EXPECT_GE(found.overlap, wanted);
    EXPECT_GT(moved, 0);
}

TEST_P(InfinigenTokenOnCuda, TransfersChangeNoResult) {
    std::mt19937 random{std::random_device{}()};
    const std::vector<test::Tokens> prompts{test::randomTokens(700, random), test::randomTokens(40, random),
                                            test::randomTokens(260, random)};
    test::expectTransfersChangeNothing(prompts, optionsOf(Backend::Cuda, GetParam(), 80));
}

INSTANTIATE_TEST_SUITE_P(Parameters, InfinigenTokenOnCuda,
                         ::testing::Values(Settings{}, Settings{{"alpha", "1"}}, Settings{{"warmup_tokens", "300"}},
                                           Settings{{"alpha", "1"}, {"warmup_tokens", "300"}},
                                           Settings{{"alpha", "2"}, {"max_num_kv", "50"}, {"partial_ratio", "0.5"}},
                                           Settings{{"block_size", "16"}, {"dense_layers", "3"}}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
