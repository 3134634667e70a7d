// docs/adding-a-method.md prints a method that compiles, runs, and chooses what it says.
#include "core/calibrate/attention_samples.h"
#include "core/select/method.h"
#include "core/session/engine.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace kvscope {

MethodEntry smallNormMethod();

namespace KVSCOPE_TEST_FILE {

std::string contents(const std::string& path) {
    std::ifstream file(test::source(path));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

TEST(ExampleMethod, IsPrintedInTheGuideAsItIsCompiled) {
    const std::string code = contents("tests/core/example_method.cpp");
    ASSERT_FALSE(code.empty());
    EXPECT_NE(contents("docs/adding-a-method.md").find(code), std::string::npos)
        << "copy tests/core/example_method.cpp into docs/adding-a-method.md";
}

TEST(ExampleMethod, ChoosesTheBlocksOfTheSmallestNorms) {
    const auto model = Model::load(kDefaultModel);
    const ModelConfig& config = model->config();
    const MethodEntry method = smallNormMethod();
    const ParameterValues values = resolveDefaults(method, config);
    std::vector<std::vector<std::int32_t>> prompts{{}};
    for (int i = 0; i < 1900; ++i) prompts[0].push_back(2 + (i * 733 + i * i) % (config.vocab - 2));
    SessionOptions options;
    const SelectionSpec spec = method.make(values, config);
    EngineSetup setup{model,
                      prompts,
                      options,
                      spec,
                      {2000},
                      16,
                      LayerPlans(config, spec, {.remembers = true}),
                      "keep-selected",
                      RecordLevel::Full,
                      {},
                      {},
                      abilitiesOf(method, {values, spec, config}),
                      {}};
    ASSERT_EQ(setup.spec.budgetBlocks(), 16);
    setup.makeSelector = [&](const SelectorContext& context) { return method.makeSelector(values, context); };
    const auto engine = makeCpuEngine(setup);
    StepRecord prefill, step;
    engine->prefill(prefill, {}, {});
    const ActiveSequence active{RowId{0}, 1900};
    const std::int32_t token = 7;
    step.step = 1;
    engine->decode({&active, 1}, {&token, 1}, step);
    ASSERT_EQ(step.selections.size(), std::size_t(config.layers * config.kvHeads));

    // The same from the keys themselves. The new token's block is forced, so its own key plays no part.
    const TextSamples samples = sampleAttention(model, prompts[0], {0}, 0);
    for (const SelectionRecord& s : step.selections) {
        const auto& keys = samples.layers[std::size_t(s.layer)].keys[std::size_t(s.kvHead)];
        std::vector<std::pair<double, int>> far; // blocks 1..25; sink 0, window 26..29
        for (int block = 1; block <= 25; ++block) {
            double smallest = INFINITY;
            for (int t = 64 * block; t < 64 * (block + 1); ++t) {
                double norm = 0;
                for (int c = 0; c < config.headDim; ++c)
                    norm += std::pow(double(keys[std::size_t(t * config.headDim + c)]), 2);
                smallest = std::min(smallest, std::sqrt(norm));
            }
            far.emplace_back(smallest, block);
        }
        std::sort(far.begin(), far.end());
        std::vector<std::int32_t> wanted{0, 26, 27, 28, 29};
        for (int i = 0; i < 11; ++i) wanted.push_back(far[std::size_t(i)].second);
        std::sort(wanted.begin(), wanted.end());
        EXPECT_EQ(test::idsOf(step, s), wanted) << "layer " << s.layer << " KV head " << s.kvHead;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
