// Runs over diffusion blocks where they break most easily, under every method, on the CPU and, where there is one, on a
// GPU.
#include "tests/core/block_rules.h"

#include "base/error.h"
#include "core/session/engine.h"

#include <string>
#include <tuple>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::expectBlockRules;
using test::randomSdar;
using test::somePrompt;

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Heads of 64 channels, which the GPU's kernels have.
nlohmann::json configOf(int block) {
    nlohmann::json config = test::sdarConfig(block);
    config["head_dim"] = 64;
    return config;
}

/// A method with settings that make it sparse over prefixes as short as these.
struct Way {
    const char *name, *method;
    Settings settings;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

std::vector<Way> ways() {
    return {{"full", "full", {}},
            {"quest", "quest", {{"budget", "32"}, {"first", "sparse"}, {"final", "reuse"}}},
            {"losa", "losa", {{"budget", "32"}, {"final", "reuse"}}},
            {"losa_shared", "losa", {{"budget", "64"}, {"agnostic_share", "0.5"}}},
            {"losa_none_active", "losa", {{"budget", "32"}, {"active", "0"}}},
            {"losa_threshold", "losa", {{"budget", "32"}, {"active_threshold", "0.01"}, {"active_set", "kv_head"}}},
            {"sparsed", "sparsed", {{"budget", "32"}, {"final", "reuse"}}}};
}

class DenoiseEdges : public ::testing::TestWithParam<std::tuple<Backend, Way>> {
protected:
    void SetUp() override {
        if (std::get<0>(GetParam()) == Backend::Cpu) return;
        try {
            requireGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
    }
    SessionOptions options(int newTokens, const Settings& more = {}) const {
        const auto& [backend, way] = GetParam();
        SessionOptions options;
        options.backend = backend;
        options.method = way.method;
        options.settings = way.settings;
        options.settings.insert(options.settings.end(), more.begin(), more.end());
        options.maxNewTokens = newTokens;
        options.stopAtEos = false;
        options.threads = 1;
        return options;
    }
};

TEST_P(DenoiseEdges, BlocksOfAnyLengthBehindPromptsOfAnyRest) {
    for (const int block : {1, 7, 16, 64}) {
        const auto model = randomSdar(configOf(block));
        for (const int prompt : {block, 3 * block + 1, 4 * block - 1})
            for (const char* strategy : {"low_confidence_static", "entropy_bounded"}) {
                SCOPED_TRACE(::testing::Message() << "block " << block << " prompt " << prompt << " " << strategy);
                const auto ids = somePrompt(prompt);
                const int steps = std::max(1, block / 3); // block is no multiple of the steps
                expectBlockRules(
                    denoise(model, {ids},
                            options(block + 3, {{"strategy", strategy}, {"steps", std::to_string(steps)}})),
                    ids, block, block + 3);
            }
    }
}

TEST_P(DenoiseEdges, OneTokenIsGenerated) {
    for (const int prompt : {1, 15, 16, 80}) {
        const auto ids = somePrompt(prompt);
        expectBlockRules(denoise(randomSdar(configOf(16)), {ids}, options(1)), ids, 16, 1);
    }
}

/// Of a prompt's block that is denoised, and of its prefix.
TEST_P(DenoiseEdges, MaskIdsOfAPromptAreText) {
    auto ids = somePrompt(70);
    for (const std::size_t place : {0u, 5u, 31u, 66u, 69u}) ids[place] = 90;
    const auto run = denoise(randomSdar(configOf(16)), {ids}, options(20));
    expectBlockRules(run, ids, 16, 20);
    for (const std::int32_t id : run.generated[0]) EXPECT_NE(id, 90);
}

/// Prefixes that are shorter than a page, end inside one, or are as long as the budget.
TEST_P(DenoiseEdges, PrefixesAroundAPage) {
    const auto model = randomSdar(configOf(5));
    for (const int prompt : {5, 15, 16, 20, 32, 35}) {
        SCOPED_TRACE(prompt);
        const auto ids = somePrompt(prompt);
        const auto run = denoise(model, {ids}, options(12));
        expectBlockRules(run, ids, 5, 12);
        for (const StepRecord& step : run.steps)
            for (const DenoiseLayer& layer : step.denoise.layers) {
                EXPECT_GE(layer.density, 0);
                EXPECT_LE(layer.density, 1);
            }
    }
}

TEST_P(DenoiseEdges, TextEndsInsideABlock) {
    nlohmann::json config = configOf(16);
    const auto free = denoise(randomSdar(config), {somePrompt(41)}, options(40));
    const std::int32_t end = free.generated[0][13];
    config["eos_token_id"] = end;
    auto stopping = options(40);
    stopping.stopAtEos = true;
    const auto ended = denoise(randomSdar(config), {somePrompt(41)}, stopping).generated[0];
    ASSERT_FALSE(ended.empty());
    EXPECT_EQ(ended.back(), end);
    EXPECT_LE(ended.size(), 14u);
}

TEST_P(DenoiseEdges, AContextEndsInsideABlock) {
    nlohmann::json config = configOf(48);
    config["max_position_embeddings"] = 100;
    EXPECT_EQ(denoise(randomSdar(config), {somePrompt(90)}, options(10)).generated[0].size(), 10u);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DenoiseEdges, ::testing::Combine(::testing::Values(Backend::Cpu, Backend::Cuda), ::testing::ValuesIn(ways())),
    [](const auto& tested) {
        return std::string(nameOf(std::get<0>(tested.param))) + "_" + std::get<1>(tested.param).name;
    });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
