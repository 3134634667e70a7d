// Findings that come before the others have been looked for.
#include "tests/profiler/insights_fixture.h"

#include "profiler/insights/insight_rule.h"

#include <algorithm>
#include <set>

namespace kvscope {
namespace {

TEST(InsightProgress, GivesWhatIsKnownBeforeItReadsMore) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    test::record(file, {.method = "infllmv2", .newTokens = 30});
    const TraceReader reader(file);
    std::vector<InsightReport> parts;
    const InsightReport whole =
        insightsOf(reader, 1, {.found = [&](InsightReport soFar) { parts.push_back(std::move(soFar)); }});
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0].judged, 0);
    EXPECT_TRUE(parts[0].insights.empty());
    EXPECT_EQ(parts[0].exposure.headline, whole.exposure.headline) << "the sentence on top is there at once";
    EXPECT_EQ(whole.rules, int(insightRules().size()));
    EXPECT_EQ(whole.judged, whole.rules);
    std::set<std::string> seen;
    for (std::size_t i = 1; i < parts.size(); ++i) {
        EXPECT_GT(parts[i].judged, parts[i - 1].judged);
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

TEST(InsightProgress, OnlyRulesAboutTheCacheWaitForItsReplay) {
    for (const InsightRule& rule : insightRules()) {
        const std::string id = rule.id;
        const bool replays = id == "thrash" || id == "wrong-policy" || id == "oversized-cache";
        EXPECT_EQ(rule.reads == RuleReads::Replays, replays) << id;
    }
}

} // namespace
} // namespace kvscope
