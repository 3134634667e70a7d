// What a comparison is told of long runs: a glance first, then all of it.
#include "tests/ui/view_fixture.h"

#include "ui/views/sample_feed.h"

#include <QLabel>

#include <vector>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class SampleFeedTest : public ViewTest {
protected:
    using Part = SampleFeed::Part;
    RunKey key(const char* name, int decodeSteps) {
        open(recorded(name, {.layers = 2, .kvHeads = 1, .decodeSteps = decodeSteps}, RecordLevel::Counters));
        return workspace.current()->key;
    }
    void ask(const std::vector<RunKey>& keys) {
        feed.ask(
            keys,
            [this](std::vector<SampleFeed::Sample> given, Part part) {
                parts.push_back(part);
                samples.push_back(std::move(given));
                if (part == Part::Glance && stopsAtGlance) feed.pause();
            },
            [](std::size_t, const QString& problem) { ADD_FAILURE() << problem.toStdString(); }, [] {});
    }
    bool answered(std::size_t times) {
        return waitFor([&] { return parts.size() == times && !feed.loading(); });
    }

    QObject context;
    SampleFeed feed{workspace, &context, "samples"};
    std::vector<Part> parts;
    std::vector<std::vector<SampleFeed::Sample>> samples;
    bool stopsAtGlance = false;
};

TEST_F(SampleFeedTest, LongRunsAreGlancedAtBeforeAllOfThemIsRead) {
    const RunKey a = key("a.kvtrace", 2600), b = key("b.kvtrace", 2200);
    ask({a, b});
    ASSERT_TRUE(answered(2));
    EXPECT_EQ(parts, (std::vector{Part::Glance, Part::All}));
    for (std::size_t place = 0; place < 2; ++place) {
        const RunSample whole = loadRunSample(TraceReader((place == 0 ? a : b).path.toStdString()), 1);
        const RunSample &glance = *samples[0][place], &all = *samples[1][place];
        EXPECT_EQ(glance.steps.size(), 440u) << "every fifth of the steps that both have";
        EXPECT_EQ(glance.steps.back().step, 2196);
        EXPECT_EQ(glance.steps.back().componentNs, whole.steps[2195].componentNs);
        EXPECT_EQ(glance.summary.tokensPerSecond, whole.summary.tokensPerSecond) << "known from whole steps";
        ASSERT_EQ(all.steps.size(), whole.steps.size());
        EXPECT_EQ(all.steps.back().durationNs, whole.steps.back().durationNs);
        EXPECT_EQ(all.summary.misses, whole.summary.misses);
    }
    const std::span left(samples[0][0].get(), 1), right(samples[0][1].get(), 1);
    EXPECT_TRUE(findObstacles(left, right).empty()) << findObstacles(left, right).front().what;
    ask({a, b});
    ASSERT_TRUE(answered(3));
    EXPECT_EQ(parts.back(), Part::All) << "what is known needs no glance";
}

TEST_F(SampleFeedTest, ShortRunsAreReadAtOnce) {
    const RunKey a = key("a.kvtrace", 40), b = key("b.kvtrace", 50);
    ask({a, b});
    ASSERT_TRUE(answered(1));
    EXPECT_EQ(parts.front(), Part::All);
}

TEST_F(SampleFeedTest, AStopAfterTheGlanceLeavesTheRestForLater) {
    const RunKey a = key("a.kvtrace", 2100), b = key("b.kvtrace", 2100);
    stopsAtGlance = true;
    ask({a, b});
    ASSERT_TRUE(answered(1));
    EXPECT_TRUE(feed.paused());
    EXPECT_EQ(parts, (std::vector{Part::Glance}));
    feed.resume();
    ASSERT_TRUE(answered(2));
    EXPECT_EQ(parts.back(), Part::All);
    EXPECT_FALSE(feed.paused());
}

TEST_F(SampleFeedTest, TheVerdictOnLongRunsEndsAsThatOnAllSteps) {
    const RunKey b = key("b.kvtrace", 2200);
    key("a.kvtrace", 2200);
    workspace.setCompare(b);
    show("compare");
    auto& verdict = *view->findChild<QLabel*>(QStringLiteral("verdict"));
    ASSERT_TRUE(waitFor([&] {
        return verdict.isVisible() && workspace.idle() && !verdict.text().contains(QStringLiteral("first look"));
    })) << verdict.text().toStdString();
    EXPECT_TRUE(view->exportCsv().contains(QStringLiteral("\"Decode steps\",steps,2200,2200,0")));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
