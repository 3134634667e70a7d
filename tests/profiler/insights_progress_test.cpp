// Findings that come before the others have been looked for.
#include "tests/profiler/insights_fixture.h"

#include "profiler/insights/insight_rule.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr, testing::Not;

constexpr std::int64_t kLayers = 8; // of nosa-tiny

TEST(InsightProgress, GivesWhatIsKnownBeforeItReadsMore) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    test::record(file, {.method = "infllmv2", .newTokens = 30});
    const TraceReader reader(file);
    std::vector<InsightReport> parts;
    const InsightReport whole =
        insightsOf(reader, 1, {.found = [&](InsightReport soFar) { parts.push_back(std::move(soFar)); }});
    ASSERT_EQ(parts.size(), kRuleReads.size());
    EXPECT_EQ(parts[0].judged, 0);
    EXPECT_TRUE(parts[0].insights.empty());
    EXPECT_THAT(parts[0].exposure.headline, HasSubstr("of decode time would be exposed")) << "there at once";
    EXPECT_EQ(whole.rules, int(insightRules().size()));
    EXPECT_EQ(whole.judged, whole.rules);
    std::set<std::string> seen;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        EXPECT_GT(parts[i].judged, parts[i - 1].judged) << "every kind of reading serves a rule";
        EXPECT_EQ(parts[i].exposure.byLayer, kRuleReads[i] > RuleReads::Layers);
        EXPECT_GE(parts[i].insights.size(), parts[i - 1].insights.size());
        EXPECT_LT(parts[i].judged, parts[i].rules) << "the last findings are the answer's";
    }
    for (const Insight& insight : parts.back().insights) {
        const auto same = std::find_if(whole.insights.begin(), whole.insights.end(),
                                       [&](const Insight& each) { return each.id == insight.id; });
        ASSERT_NE(same, whole.insights.end()) << insight.id;
        EXPECT_EQ(same->title, insight.title);
    }
    // Asked without looking on, the answer is the same.
    const InsightReport alone = insightsOf(reader, 1);
    ASSERT_EQ(alone.insights.size(), whole.insights.size());
    for (std::size_t i = 0; i < alone.insights.size(); ++i) EXPECT_EQ(alone.insights[i].title, whole.insights[i].title);
}

/// The steps' own sums are what their layers add up to, so the first sentence stays true when the layers are read.
TEST(InsightProgress, TheStepsAloneGiveTheSharesThatTheirLayersConfirm) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    test::record(file, {.method = "infllmv2", .newTokens = 90, .sequences = 2});
    const TraceReader reader(file);
    const ExposureReport steps = exposureOfSteps(reader, *reader.run(1), reader.steps(1)),
                         whole = exposureOf(reader, 1);
    EXPECT_FALSE(steps.byLayer);
    EXPECT_TRUE(steps.layers.empty());
    ASSERT_TRUE(whole.byLayer);
    ASSERT_EQ(steps.steps.size(), 89u); // the prefill gives the first token
    EXPECT_GT(steps.exposedShare(), 0);
    EXPECT_EQ(steps.exposedShare(), whole.exposedShare());
    EXPECT_EQ(steps.decodeNs(), whole.decodeNs());
    for (std::size_t i = 0; i < steps.steps.size(); ++i) {
        EXPECT_EQ(steps.steps[i].kind, whole.steps[i].kind);
        EXPECT_EQ(steps.steps[i].time.exposedNs, whole.steps[i].time.exposedNs) << i;
        EXPECT_EQ(steps.steps[i].time.transferNs, whole.steps[i].time.transferNs) << i;
        EXPECT_EQ(whole.steps[i].selectingNs, 3 * kLayers * test::kStageNs) << i;
    }
    EXPECT_THAT(steps.detail, Not(HasSubstr("Main reason")));
    EXPECT_THAT(whole.detail, HasSubstr("Main reason"));
}

TEST(InsightProgress, OnlyRulesAboutTheCacheWaitForItsReplay) {
    for (const InsightRule& rule : insightRules()) {
        const std::string id = rule.id;
        const bool replays = id == "thrash" || id == "wrong-policy" || id == "oversized-cache";
        EXPECT_EQ(rule.reads == RuleReads::Replays, replays) << id;
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
