// What an engine's costs are measured with: the prompts of measureCosts.
#include "core/serve/load.h"
#include "tests/core/served_requests.h"

#include <algorithm>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

struct Asked {
    int prompt, answer;
};

/// `nosa` with eight selected blocks of 64 tokens.
EngineOptions options(bool offload, std::int64_t device) {
    EngineOptions options;
    options.session.method = "nosa";
    options.session.threads = 1;
    options.session.settings = {
        {"sink_blocks", "1"}, {"window_blocks", "1"}, {"select_blocks", "4"}, {"total_blocks", "8"}};
    options.scheduler.offload = offload;
    options.budget = {0, std::int64_t(1) << 28, device, std::int64_t(1) << 28, true};
    return options;
}

/// The costs of that engine, and the requests that they were measured with.
ServiceCosts measured(const EngineOptions& engine, std::vector<Asked>& asked) {
    LoadOptions load;
    load.prompt = [&](const WorkloadLine& line, std::int64_t id) {
        asked.push_back({line.promptTokens, line.outputTokens});
        return test::randomPrompt(line.promptTokens, unsigned(id) + 1);
    };
    return measureCosts(embedded(), engine, load);
}

/// Steps of a context that is shorter than a selection read less than those of any longer one, and were taken for them.
TEST(MeasuredCosts, ComeFromStepsOfWholeSelections) {
    KVSCOPE_NEEDS_NOSA_TINY();
    std::vector<Asked> asked;
    const ServiceCosts costs = measured(options(true, std::int64_t(1) << 28), asked);
    ASSERT_EQ(costs.shape.selectedBlocks * costs.shape.blockTokens, 512);
    for (const Asked& each : asked)
        EXPECT_TRUE(each.answer == 1 || each.prompt >= 512) << each.prompt << " tokens, and its steps are measured";
    EXPECT_EQ(costs.decodeMs.points.back().first, 8) << "rows of a step";
    EXPECT_EQ(costs.decodeMs.points.size(), 8u);
    const auto [shortest, longest] = std::ranges::minmax(asked, {}, &Asked::prompt);
    EXPECT_LE(shortest.prompt, 256) << "what a token of a prompt costs shows at several lengths";
    EXPECT_GE(longest.prompt, 4000);
}

/// Where two such rows have no room, shorter ones are measured: a table without steps says nothing.
TEST(MeasuredCosts, ComeFromShorterContextsWhereNoMoreFits) {
    KVSCOPE_NEEDS_NOSA_TINY();
    EngineObserver nobody;
    const Engine any(embedded(), options(false, std::int64_t(1) << 28), nobody);
    std::vector<Asked> asked;
    const ServiceCosts costs = measured(options(false, any.costs().shape.tokenBytes() * 512 * 7 / 4), asked);
    EXPECT_GE(costs.decodeMs.points.size(), 2u);
    for (const Asked& each : asked)
        EXPECT_TRUE(each.answer == 1 || each.prompt < 512 || each.prompt > 4000) << each.prompt;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
