// The timeline on a trace that somebody else's program wrote: many spans, newest first, on tracks numbered beyond nine.
#include "tests/ui/timeline_fixture.h"

#include "base/error.h"
#include "profiler/read/self_time.h"
#include "profiler/store/trace_store.h"
#include "ui/timeline/self_time_numbers.h"

#include <QLabel>
#include <QPushButton>
#include <QTableWidget>
#include <QThread>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

constexpr int kSpans = 210'000, kNames = 1'400;
constexpr std::size_t kEnough = std::size_t(1) << 30; // bytes

class TimelineScale : public TimelineTest {
protected:
    /// kSpans on stream 10, the oldest and then newest first, and one on stream 9; twenty that overlap on a track of
    /// requests.
    QString outsiders() {
        TraceStore store((folder / "outsider.kvtrace").string(), true);
        store.beginRun(synthetic::infoOf({}), RecordLevel::Full);
        std::vector<SpanRecord> spans;
        for (int i = kSpans; i > 0; --i)
            spans.push_back({-1, -1, SpanRecord::Kind::Kernel, "stream 10",
                             "kernel " + std::to_string(i % kSpans % kNames), std::int64_t(i % kSpans) * 1'000, 700,
                             0});
        spans.push_back({-1, -1, SpanRecord::Kind::Kernel, "stream 9", "kernel 0", 0, 700, 0});
        for (int i = 0; i < 20; ++i)
            spans.push_back({-1, -1, SpanRecord::Kind::Range, "requests", "request", i * 1'000'000, 50'000'000, 0});
        store.addSpans(spans);
        store.endRun(RunStatus::Finished, {});
        store.commit();
        store.finish();
        return file("outsider.kvtrace");
    }
    /// With the first piece read, and more to come.
    void showTheFirst() {
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == "timeline") view.reset(entry.make(workspace, nullptr));
        view->resize(1200, 1000);
        view->show();
        QElapsedTimer timer;
        timer.start();
        // Handles only the events that are there: waiting for further ones would read further pieces.
        while (index().size() == 0 && timer.elapsed() < 60'000) {
            QCoreApplication::processEvents();
            QThread::msleep(1);
        }
        ASSERT_GT(index().size(), 0u);
        ASSERT_LT(index().size(), std::size_t(kSpans));
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
    showTheFirst();
    timeline().select(SpanRef{0, 5}); // the first that there are
    const TimelineSpan chosen = index().at({0, 5});
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

/// Lines of a table below its header, in an order that does not depend on how it was sorted.
QStringList sorted(const QString& csv) {
    QStringList lines = csv.split(QLatin1Char('\n'), Qt::SkipEmptyParts).mid(1);
    lines.sort();
    return lines;
}

TEST_F(TimelineScale, NumbersHaveTheSpansThatAreNotReadOrNotInOrderYet) {
    open(outsiders());
    showTheFirst();
    timeline().showAll();
    const QString early = view->exportCsv(), written = textOf(view->numbers());
    ASSERT_LT(index().size(), std::size_t(kSpans)) << "they did not wait for the view";
    std::int64_t spans = 0;
    for (const QString& line : sorted(early)) spans += line.section(QLatin1Char(','), 4, 4).toLongLong();
    EXPECT_EQ(spans, kSpans + 21);
    EXPECT_EQ(sorted(written), sorted(early));
    const TimeRange window = scene().window;
    ASSERT_TRUE(settles());
    timeline().zoomTo(window);
    ASSERT_EQ(scene().window, window);
    EXPECT_EQ(sorted(view->exportCsv()), sorted(early));
    Filter some;
    some.text = QStringLiteral("kernel 7");
    workspace.setFilter(some);
    const QStringList filtered = sorted(view->exportCsv());
    EXPECT_EQ(filtered.size(), 111) << "7, 70 to 79 and 700 to 799";
    const TimeRange shown = scene().window;
    const TracePart part{file("outsider.kvtrace"), 1,
                         ExportRange{std::int64_t(std::floor(shown.from)), std::int64_t(std::ceil(shown.to))}};
    EXPECT_EQ(sorted(textOf(selfTimesOf(part, SelfTimeBy::Component, some, kEnough))), filtered)
        << "as the view has it";
}

TEST_F(TimelineScale, NumbersOfARangeTakeTheMemoryOfItsSpans) {
    open(outsiders());
    show();
    ASSERT_TRUE(settles());
    const QString path = file("outsider.kvtrace");
    constexpr std::size_t kLittle = 500'000; // for 210,000 spans of 20 bytes and more
    const TracePart some{path, 1, ExportRange{30'000'500, 32'000'100}}, all{path, 1, ExportRange{0, 300'000'000}};
    const QString wanted =
        selfTimesText(selfTimes(index(), some.range->fromNs, some.range->toNs, SelfTimeBy::Component),
                      double(some.range->toNs - some.range->fromNs), QLatin1Char(','));
    ASSERT_GT(sorted(wanted).size(), 1'000);
    EXPECT_EQ(sorted(textOf(selfTimesOf(some, SelfTimeBy::Component, {}, kLittle))), sorted(wanted));
    try {
        textOf(selfTimesOf(all, SelfTimeBy::Component, {}, kLittle));
        FAIL() << "the whole run does not fit";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::OutOfMemory);
        EXPECT_NE(oneLine(error).find("mark a shorter range"), std::string::npos) << oneLine(error);
    }
}

TEST_F(TimelineScale, ANameOfTenThousandCharactersIsCutWhereItIsReadAndWholeInNumbers) {
    std::string name = "gemm<";
    while (name.size() < 10'000) name += "größe, ";
    {
        TraceStore store((folder / "templates.kvtrace").string(), true);
        store.beginRun(synthetic::infoOf({}), RecordLevel::Full);
        store.addSpans({{-1, -1, SpanRecord::Kind::Kernel, "stream 7", name, 0, 1'000'000, 0}});
        store.endRun(RunStatus::Finished, {});
        store.commit();
        store.finish();
    }
    open(file("templates.kvtrace"));
    show();
    click(middleOf(find(name, -1)));
    ASSERT_TRUE(scene().selected);
    EXPECT_TRUE(fact(QStringLiteral("Span")).startsWith(QStringLiteral("gemm<größe, ")));
    EXPECT_LE(fact(QStringLiteral("Span")).size(), 500);
    EXPECT_TRUE(fact(QStringLiteral("Span")).endsWith(QStringLiteral("…")));
    EXPECT_TRUE(view->exportCsv().contains(QString::fromStdString(name)));
}

TEST_F(TimelineScale, ReadingStopsAndGoesOn) {
    open(outsiders());
    showTheFirst();
    auto& button = child<QPushButton>("stopReading");
    button.click();
    ASSERT_TRUE(idle());
    const std::size_t held = index().size();
    EXPECT_LT(held, std::size_t(kSpans));
    EXPECT_TRUE(button.isVisible());
    QTest::qWait(100);
    EXPECT_EQ(index().size(), held);
    button.click();
    ASSERT_TRUE(settles());
    EXPECT_EQ(index().size(), std::size_t(kSpans) + 21) << "none twice, none left out";
    EXPECT_FALSE(button.isVisible());
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

TEST_F(TimelineScale, ZoomsAsFarAsNumbersGoOnAClockThatBeganLongAgo) {
    const std::int64_t late = (std::int64_t(1) << 62) - 10'000'000;
    TraceStore store((folder / "late.kvtrace").string(), true);
    store.beginRun(synthetic::infoOf({}), RecordLevel::Full);
    std::vector<SpanRecord> spans;
    for (int i = 0; i < 50; ++i)
        spans.push_back({-1, -1, SpanRecord::Kind::Kernel, "поток 🚀", "späte Zeit " + std::to_string(i % 3),
                         late + i * 100'000, 90'000, 0});
    store.addSpans(spans);
    store.endRun(RunStatus::Finished, {});
    store.commit();
    store.finish();
    open(file("late.kvtrace"));
    show();
    ASSERT_EQ(index().size(), 50u);
    const QPoint centre = timeline().areas().body.center();
    double before = scene().window.size();
    for (int i = 0; i < 100; ++i) {
        timeline().zoomBy(0.5, centre.x());
        const TimeRange window = scene().window;
        ASSERT_GT(window.size(), 0);
        ASSERT_LE(window.size(), before) << "after " << i;
        ASSERT_LT(window.from + window.size() / 100, window.to) << "a hundredth of it is still a place of its own";
        before = window.size();
    }
    EXPECT_GE(before, 64 * 1024.) << "neighbouring doubles are 512 ns apart here";
    timeline().panBy(200);
    EXPECT_GT(scene().window.size(), 0);
    timeline().grab();
    timeline().showAll();
    const SpanRef third{0, 2};
    QTest::mouseClick(&timeline(), Qt::LeftButton, {}, middleOf(third));
    ASSERT_TRUE(scene().selected);
    EXPECT_EQ(*scene().selected, third);
    EXPECT_EQ(index().at(third).startNs, late + 200'000) << "the span itself is exact";

    // A moment alone is as wide as numbers allow.
    EXPECT_EQ((TimeRange{0, 1e9}.finest()), 0);
    EXPECT_GT(TimeRange({0x1p62, 0x1p62}).finest(), 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
