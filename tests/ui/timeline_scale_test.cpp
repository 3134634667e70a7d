// The timeline on a trace that somebody else's program wrote: many spans, newest first, on tracks numbered beyond nine.
#include "tests/ui/timeline_fixture.h"

#include "profiler/read/self_time.h"
#include "profiler/store/trace_store.h"

#include <QLabel>
#include <QTableWidget>

#include <cmath>

namespace kvscope::ui {
namespace {

constexpr int kSpans = 210'000, kNames = 1'400;

class TimelineScale : public TimelineTest {
protected:
    /// kSpans on stream 10, newest first, and one on stream 9; twenty that overlap on a track of requests.
    QString outsiders() {
        TraceStore store((folder / "outsider.kvtrace").string(), true);
        store.beginRun(synthetic::infoOf({}), RecordLevel::Full);
        std::vector<SpanRecord> spans;
        for (int i = kSpans; i-- > 0;)
            spans.push_back({-1, -1, SpanRecord::Kind::Kernel, "stream 10", "kernel " + std::to_string(i % kNames),
                             std::int64_t(i) * 1'000, 700, 0});
        spans.push_back({-1, -1, SpanRecord::Kind::Kernel, "stream 9", "kernel 0", 0, 700, 0});
        for (int i = 0; i < 20; ++i)
            spans.push_back({-1, -1, SpanRecord::Kind::Range, "requests", "request", i * 1'000'000, 50'000'000, 0});
        store.addSpans(spans);
        store.endRun(RunStatus::Finished, {});
        store.commit();
        store.finish();
        return file("outsider.kvtrace");
    }
    bool settles() {
        return idle() && QTest::qWaitFor([&] { return index().waiting() == 0; }, 60'000);
    }
};

TEST_F(TimelineScale, PutsSpansInOrderAndTracksByTheirNumbers) {
    open(outsiders());
    show();
    ASSERT_TRUE(settles());
    EXPECT_EQ(index().size(), std::size_t(kSpans) + 21);
    const int lane = row(QStringLiteral("stream 10")).lane;
    ASSERT_EQ(index().lane(lane).spans, std::uint32_t(kSpans));
    for (std::uint32_t i = 0; i < kSpans; ++i) ASSERT_EQ(index().at({lane, i}).startNs, std::int64_t(i) * 1'000);
    EXPECT_LT(row(QStringLiteral("stream 9")).y, row(QStringLiteral("stream 10")).y);
    EXPECT_TRUE(child<QLabel>("timelineNote").text().contains(QStringLiteral("On requests, more spans overlap")));
    EXPECT_FALSE(child<QLabel>("timelineNote").text().contains(QStringLiteral("out of order")));
}

TEST_F(TimelineScale, KeepsTheChosenSpanWhileOthersTakeTheirPlaces) {
    open(outsiders());
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == "timeline") view.reset(entry.make(workspace, nullptr));
    view->resize(1200, 1000);
    view->show();
    ASSERT_TRUE(QTest::qWaitFor([&] { return index().size() > 0; }, 60'000));
    timeline().select(SpanRef{0, 5}); // the first that there are
    const IndexedSpan chosen = index().at({0, 5});
    ASSERT_TRUE(settles());
    ASSERT_TRUE(scene().selected);
    EXPECT_EQ(index().at(*scene().selected).startNs, chosen.startNs);
    EXPECT_EQ(scene().selected->index, std::uint32_t(chosen.startNs / 1'000));
}

TEST_F(TimelineScale, APictureHasEverySpanThatIsRead) {
    open(outsiders());
    show(); // read, perhaps not in order yet
    ASSERT_TRUE(view->exportImage(file("late.png"), {900, 600}));
    EXPECT_EQ(index().waiting(), 0u);
    ASSERT_TRUE(settles());
    ASSERT_TRUE(view->exportImage(file("later.png"), {900, 600}));
    EXPECT_EQ(QImage(file("late.png")), QImage(file("later.png")));
}

TEST_F(TimelineScale, TheTableOfTimesShowsTheLongestAndCopiesAll) {
    open(outsiders());
    show();
    ASSERT_TRUE(settles());
    const TimelineAreas areas = timeline().areas();
    const int y = areas.ruler.center().y();
    drag({areas.body.left() + 10, y}, {areas.body.right() - 10, y});
    ASSERT_TRUE(scene().range);
    EXPECT_GE(panel().height(), view->height() / 5) << "room for more than one line of the table";
    const auto wanted = selfTimes(index(), std::int64_t(std::floor(scene().range->from)),
                                  std::int64_t(std::ceil(scene().range->to)), SelfTimeBy::Component);
    ASSERT_GT(wanted.size(), std::size_t(kNames));
    EXPECT_EQ(view->exportCsv().count(QLatin1Char('\n')), qsizetype(wanted.size()) + 1)
        << "also while they are being added up";
    auto& table = child<QTableWidget>("selfTimes");
    ASSERT_TRUE(QTest::qWaitFor([&] { return table.rowCount() > 0; }, 60'000));
    EXPECT_EQ(table.rowCount(), 1'000);
    EXPECT_EQ(table.item(0, 0)->text().toStdString(), wanted[0].name);
    EXPECT_EQ(table.item(0, 2)->data(Qt::UserRole).toDouble(), double(wanted[0].selfNs));
    EXPECT_EQ(table.item(999, 2)->data(Qt::UserRole).toDouble(), double(wanted[999].selfNs));
    EXPECT_EQ(panel().timesText().count(QLatin1Char('\n')), qsizetype(wanted.size()) + 1);
}

} // namespace
} // namespace kvscope::ui
