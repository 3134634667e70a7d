// What the timeline shows before anybody has zoomed: the decode steps when a long prompt would hide them, and the map
// without the few spans that would leave all others a pixel.
#include "tests/ui/small_trace.h"
#include "tests/ui/timeline_fixture.h"

#include "ui/timeline/busy_part.h"

#include <QSignalSpy>
#include <QTableWidget>

#include <algorithm>
#include <fstream>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineOpening : public TimelineTest {
protected:
    static constexpr std::int64_t kLongPrompt = 900'000'000; // of 20 decode steps of 3 ms
    void openRun(std::int64_t prefillNs) {
        recordSmallTrace(file("run.kvtrace"), {.decodeSteps = 20, .prefillNs = prefillNs});
        open(file("run.kvtrace"));
    }
    void goTo(int step) {
        Cursor cursor = workspace.cursor();
        cursor.step = step;
        workspace.setCursor(cursor);
    }
    bool showsDecodeOnly() {
        const double first = double(index().at(find("decode")).startNs), last = double(index().endNs());
        return scene().window.from > first - 2e6 && scene().window.from < first && scene().window.to > last;
    }
    bool showsPrompt() { return scene().window.from <= 0; }
};

TEST_F(TimelineOpening, OnADecodeStepThePromptDoesNotHideIt) {
    openRun(kLongPrompt);
    goTo(7); // moves the cursor as a click in another view does
    show();
    EXPECT_TRUE(showsDecodeOnly()) << scene().window.from << " to " << scene().window.to;
    EXPECT_FALSE(timeline().isZoomed());
    EXPECT_FALSE(timeline().canUndoZoom()) << "nobody has zoomed";
    ASSERT_TRUE(beyondText(scene(), true).contains(QStringLiteral("before the decode steps")));
    const QRect sign = beyondRect(scene(), timeline().areas(), timeline().font(), true);
    click(sign.center());
    EXPECT_TRUE(showsPrompt()) << "the sign leads there";
    press(Qt::Key_F);
    EXPECT_TRUE(showsDecodeOnly());
}

TEST_F(TimelineOpening, AtThePromptEverythingIsShownUntilTheCursorLeavesIt) {
    openRun(kLongPrompt);
    goTo(0);
    show();
    EXPECT_TRUE(showsPrompt());
    goTo(3);
    EXPECT_TRUE(showsDecodeOnly());
    goTo(0);
    EXPECT_TRUE(showsPrompt()) << "the step is where the cursor is";
}

TEST_F(TimelineOpening, WhatIsClickedStaysUnderThePointer) {
    openRun(kLongPrompt);
    goTo(0);
    show();
    const TimeRange before = scene().window;
    click(middleOf(find("decode", 11)));
    EXPECT_GT(workspace.cursor().step, 0);
    EXPECT_EQ(scene().window, before);
    QTest::mouseDClick(&timeline(), Qt::LeftButton, {}, emptySpot());
    EXPECT_TRUE(showsDecodeOnly()) << "a double click fits the steps";
}

TEST_F(TimelineOpening, AShortPromptIsShownWithItsSteps) {
    openRun(2'900'000);
    goTo(7);
    show();
    EXPECT_TRUE(showsPrompt());
}

TEST_F(TimelineOpening, AZoomIsNotMovedByTheRule) {
    openRun(kLongPrompt);
    goTo(0);
    show();
    press(Qt::Key_W);
    const TimeRange zoomed = scene().window;
    goTo(2); // far to the right of what is shown: then the window follows, as ever
    goTo(0);
    EXPECT_NEAR(scene().window.size(), zoomed.size(), 1);
}

/// Spans of 1 ms, one after the other, on one track, as another tool's file.
class TimelineOutliers : public TimelineOpening {
protected:
    void import(const std::vector<double>& startsMs) {
        std::ofstream out(folder / "tool.json");
        out << R"({"traceEvents":[{"ph":"X","pid":1,"tid":2,"name":"other","ts":5000000,"dur":10})";
        for (const double ms : startsMs)
            out << R"(,{"ph":"X","pid":1,"tid":1,"name":"work","ts":)" << std::to_string(ms * 1000) << R"(,"dur":900})";
        out << "]}";
        out.close();
        open(file("tool.json"));
        show();
    }
    static std::vector<double> busy(int spans, double fromMs = 5'000) {
        std::vector<double> starts;
        for (int i = 0; i < spans; ++i) starts.push_back(fromMs + i);
        return starts;
    }
    /// Pixels of the map's columns that differ from its ground.
    int usedColumns() {
        const QRect map = timeline().areas().minimap;
        const QImage picture = timeline().grab(map).toImage();
        int used = 0;
        for (int x = 4; x < picture.width() - 4; ++x) {
            bool any = false;
            for (int y = 4; y < picture.height() - 4; ++y) // a veil and the frame are not the spans
                any = any || picture.pixelColor(x, y).saturation() > 60;
            used += any;
        }
        return used;
    }
};

TEST_F(TimelineOutliers, OneFarSpanLeavesTheMapAndTheWindowToTheOthers) {
    std::vector<double> starts = busy(400);
    starts.push_back(9e9); // a clock that was never set: a hundred days later
    import(starts);
    EXPECT_NEAR(scene().window.size(), 400e6, 20e6) << "the part where things happen";
    EXPECT_GT(usedColumns(), timeline().areas().minimap.width() / 2);
    EXPECT_TRUE(beyondText(scene(), false).contains(QStringLiteral("after")));
    // A drag on the map moves within its own scale.
    const QRect map = timeline().areas().minimap;
    for (int i = 0; i < 12; ++i) press(Qt::Key_W);
    const double size = scene().window.size();
    click({map.left() + map.width() / 4, map.center().y()});
    drag({map.left() + map.width() / 4, map.center().y()}, {map.left() + map.width() * 3 / 4, map.center().y()});
    const double middle = (scene().window.from + scene().window.to) / 2;
    EXPECT_NEAR(middle, scene().busy.from + scene().busy.size() * 0.75, scene().busy.size() * 0.01);
    EXPECT_NEAR(scene().window.size(), size, 1);
    press(Qt::Key_0); // everything is still there
    EXPECT_GT(scene().window.size(), 1e15);
    EXPECT_EQ(mapOf(scene()), data().whole());
    press(Qt::Key_F);
    EXPECT_NEAR(scene().window.size(), 400e6, 20e6);
}

TEST_F(TimelineOutliers, ADragOnTheMapMeansTheMapThatWasThereWhenItBegan) {
    std::vector<double> starts = busy(400);
    starts.push_back(7'400); // six times as long as the others' part, which takes the left of the map
    import(starts);
    press(Qt::Key_0);
    const TimeRange whole = data().whole();
    ASSERT_LT(scene().busy.size(), whole.size() / 4);
    ASSERT_EQ(mapOf(scene()), whole);
    const QRect map = timeline().areas().minimap;
    const auto at = [&](double share) { return QPoint(map.left() + int(map.width() * share), map.center().y()); };
    const auto timeOf = [&](QPoint point) {
        return whole.from + double(point.x() - map.left()) / map.width() * whole.size();
    };
    mouse(QEvent::MouseButtonPress, at(0.04), Qt::LeftButton, Qt::LeftButton, Qt::ShiftModifier);
    for (const double share : {0.14, 0.12, 0.1}) { // pieces of the busy part, whose map is another one
        mouse(QEvent::MouseMove, at(share), Qt::NoButton, Qt::LeftButton, Qt::ShiftModifier);
        EXPECT_NEAR(scene().window.from, timeOf(at(0.04)), 10) << share;
        EXPECT_NEAR(scene().window.to, timeOf(at(share)), 10) << share;
        EXPECT_EQ(mapOf(scene()), whole) << "it is drawn as it was";
    }
    mouse(QEvent::MouseButtonRelease, at(0.1), Qt::LeftButton, {}, Qt::ShiftModifier);
    EXPECT_EQ(mapOf(scene()), scene().busy) << "the drag is over";
}

TEST_F(TimelineOutliers, ASmallTraceAndOneWithManyFarSpansKeepThemAll) {
    import({5'000, 5'001, 9e6});
    EXPECT_EQ(scene().window, data().whole()) << "a third of the spans is no outlier";
}

TEST_F(TimelineOutliers, BothEndsAreJudgedEachForItself) {
    const auto partOf = [](const std::vector<std::int64_t>& startsMs) {
        SpanBatch batch;
        batch.texts = {"track", "work"};
        for (const std::int64_t ms : startsMs) batch.spans.push_back({ms * 1'000'000, 500'000, 0, 1, -1, -1, 0});
        SpanIndex index;
        index.append(batch);
        return busyPart(index);
    };
    std::vector<std::int64_t> starts;
    for (int i = 0; i < 5'000; ++i) starts.push_back(1'000'000 + i);
    EXPECT_FALSE(partOf(starts).leavesOut);
    std::vector<std::int64_t> early = starts, both = starts, near = starts, group = starts;
    early.insert(early.begin(), 0);
    EXPECT_TRUE(partOf(early).leavesOut);
    EXPECT_EQ(partOf(early).fromNs, 1'000'000'000'000);
    both.insert(both.begin(), {0, 7});
    both.push_back(90'000'000);
    EXPECT_EQ(partOf(both).fromNs, 1'000'000'000'000);
    EXPECT_EQ(partOf(both).toNs, (1'000'000 + 4'999) * std::int64_t(1'000'000) + 500'000);
    near.insert(near.begin(), 999'000); // one second before the busy five is too near for an outlier
    EXPECT_FALSE(partOf(near).leavesOut);
    for (int i = 0; i < 600; ++i) group.push_back(90'000'000 + i); // a tenth of the spans is another phase, no outlier
    EXPECT_FALSE(partOf(group).leavesOut);
    EXPECT_FALSE(busyPart(SpanIndex()).leavesOut);
}

/// The table of times while the next one is added up.
TEST_F(TimelineOpening, TheTimesStayUntilTheNextOnesAreThere) {
    openRun(2'900'000);
    show();
    auto& table = *panel().findChild<QTableWidget*>(QStringLiteral("selfTimes"));
    ASSERT_TRUE(waitFor([&] { return table.rowCount() > 3; }));
    const int rows = table.rowCount();
    panel().showTimesProgress(QStringLiteral("Adding up"));
    EXPECT_EQ(table.rowCount(), rows);
    table.selectRow(1);
    const QString chosen = table.item(1, 0)->text();
    int least = rows, filled = 0;
    const QObject listening; // is destroyed before the variables that the lambdas use
    QObject::connect(table.model(), &QAbstractItemModel::rowsRemoved, &listening,
                     [&] { least = std::min(least, table.rowCount()); });
    QObject::connect(table.model(), &QAbstractItemModel::modelReset, &listening, [&] { least = 0; });
    QObject::connect(table.model(), &QAbstractItemModel::dataChanged, &listening, [&] { ++filled; });
    panel().setCurrentIndex(1);
    table.sortByColumn(0, Qt::DescendingOrder); // the names change places
    for (int i = 0; i < 4; ++i) press(Qt::Key_W);
    filled = 0;
    ASSERT_TRUE(waitFor([&] { return filled > 0; })) << "the times of the new window";
    EXPECT_GT(least, 0);
    const auto selected = table.selectionModel()->selectedRows();
    ASSERT_EQ(selected.size(), 1);
    EXPECT_EQ(table.item(selected.front().row(), 0)->text(), chosen);
}

TEST_F(TimelineOpening, AChosenNameIsNotMixedUpWithOneThatReadsTheSame) {
    openRun(2'900'000);
    show();
    auto& table = *panel().findChild<QTableWidget*>(QStringLiteral("selfTimes"));
    const std::string stem(2'000, 'k'); // more than is shown of a name
    const std::vector<SelfTime> times{{"stream 1", stem + "a", 1, 70, 70, 70}, {"stream 1", stem + "b", 1, 30, 30, 30}};
    panel().showTimes(times, {0, 100}, true);
    ASSERT_EQ(table.rowCount(), 2);
    ASSERT_EQ(table.item(0, 0)->text(), table.item(1, 0)->text());
    table.selectRow(1);
    panel().showTimes(times, {0, 100}, true);
    const auto selected = table.selectionModel()->selectedRows();
    ASSERT_EQ(selected.size(), 1);
    EXPECT_EQ(selected.front().row(), 1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
