// The timeline as a person uses it: every gesture and key, what a click tells the other views, notes, and the picture.
#include "tests/ui/timeline_fixture.h"

#include "base/error.h"
#include "profiler/read/span_search.h"
#include "ui/timeline/time_ticks.h"
#include "ui/views/timeline/timeline_view.h"

#include <QClipboard>
#include <QComboBox>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QPainter>
#include <QPushButton>
#include <QSignalSpy>
#include <QSplitter>
#include <QStackedWidget>
#include <QTableWidget>
#include <QToolButton>

#include <algorithm>
#include <filesystem>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

TEST_F(TimelineTest, TeachesWhenNoRunIsOpen) {
    show();
    EXPECT_TRUE(child<QLabel>("emptyText").text().contains(QStringLiteral("No run is open")));
    EXPECT_TRUE(child<QLabel>("emptyText").isVisible());
    EXPECT_TRUE(view->exportCsv().isEmpty());
    EXPECT_TRUE(view->exportImage(file("empty.png"), {640, 400}));
    press(Qt::Key_W);
    press(Qt::Key_Right);
    press(Qt::Key_N);
}

TEST_F(TimelineTest, HoldsEverySpanOfTheRunAndItsCounters) {
    openAndShow({.layers = 4, .decodeSteps = 20});
    std::size_t spans = 0;
    for (const auto& record : synthetic::stepsOf({.layers = 4, .decodeSteps = 20})) {
        ++spans;
        for (const auto ns : record.stepStageNs) spans += ns > 0 ? 1u : 0u;
        for (const LayerRecord& layer : record.layers) {
            ++spans;
            for (const auto ns : layer.stageNs) spans += ns > 0 ? 1u : 0u;
            spans += (layer.h2dBytes > 0 ? 1u : 0u) + (layer.d2hBytes > 0 ? 1u : 0u);
        }
    }
    EXPECT_EQ(index().size(), spans);
    EXPECT_TRUE(timeline().data().counters.has(StepCounters::TokenRate));
    EXPECT_TRUE(timeline().data().counters.has(StepCounters::HitRate));
    EXPECT_TRUE(child<QLabel>("timelineNote").text().contains(QStringLiteral("spans")));
    EXPECT_EQ(scene().window, timeline().data().whole());
}

TEST_F(TimelineTest, StopsReadingBeforeTheMachineRunsOutOfMemory) {
    open(recorded("run.kvtrace", {.layers = 8, .decodeSteps = 400}));
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == "timeline") view.reset(entry.make(workspace, nullptr));
    dynamic_cast<TimelineView&>(*view).setMemoryLimit(1000);
    view->resize(1200, 1000);
    view->show();
    ASSERT_TRUE(waitFor([&] { return index().size() > 0; }));
    ASSERT_TRUE(idle());
    const std::size_t kept = index().size();
    EXPECT_LT(kept, 400u * 8 * 6) << "stages alone are more";
    const auto* note = view->findChild<QLabel*>(QStringLiteral("timelineNote"));
    EXPECT_TRUE(note->text().contains(QStringLiteral("Reading stopped: the spans so far take")))
        << note->text().toStdString();
    workspace.traceAdvanced();
    ASSERT_TRUE(idle());
    EXPECT_EQ(index().size(), kept) << "nor later";
    EXPECT_THROW(view->exportCsv(), Error) << "the numbers of a part are not those of what is shown";
    dynamic_cast<TimelineView&>(*view).setMemoryLimit(std::size_t(1) << 30);
    timeline().showAll();
    std::int64_t counted = 0;
    for (const QString& line : view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts).mid(1))
        counted += line.section(QLatin1Char(','), 4, 4).toLongLong();
    EXPECT_GT(counted, std::int64_t(kept)) << "they are read from the trace";
}

TEST_F(TimelineTest, ALiveRunGetsItsSlotsWhenTheyAreKnown) {
    const QString path = recorded("run.kvtrace", {.decodeSteps = 20});
    workspace.addLive({path, 1}); // nothing is known of the run yet, while its steps can be read already
    show();
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.deviceSlots > 0; }));
    workspace.traceAdvanced();
    ASSERT_TRUE(waitFor([&] { return timeline().data().counters.size() > 0 && workspace.idle(); }));
    ASSERT_TRUE(waitFor([&] { return !timeline().data().counters.has(StepCounters::KvTokens); }))
        << "tokens stand for what is resident only where there is no cache";
}

TEST_F(TimelineTest, WhatLiesUnderARestingPointerFollowsTheWindow) {
    openAndShow({.decodeSteps = 20});
    const QPoint at(timeline().areas().body.left() + 300, timeline().areas().body.top() + 20);
    mouse(QEvent::MouseMove, at, Qt::NoButton, Qt::NoButton, {});
    ASSERT_TRUE(scene().hoverNs.has_value());
    const double before = *scene().hoverNs;
    press(Qt::Key_2);
    EXPECT_NE(*scene().hoverNs, before);
    EXPECT_NEAR(*scene().hoverNs, timeAt(at.x()), 1);
    press(Qt::Key_D);
    EXPECT_NEAR(*scene().hoverNs, timeAt(at.x()), 1);
}

TEST_F(TimelineTest, WheelZoomsAtThePointer) {
    openAndShow();
    const QPoint at(timeline().areas().body.left() + 300, timeline().areas().body.center().y());
    const double before = timeAt(at.x()), size = scene().window.size();
    wheel(at, 3);
    EXPECT_NEAR(scene().window.size(), size * std::pow(0.8, 3), size * 1e-9);
    EXPECT_NEAR(timeAt(at.x()), before, scene().window.size() * 1e-9);
    wheel(at, -3);
    EXPECT_NEAR(scene().window.size(), size, size * 1e-6);
    wheel(at, 200); // to the end of the scale
    EXPECT_NEAR(scene().window.size(), 20, 0.01);
    wheel(at, -500);
    EXPECT_EQ(scene().window, timeline().data().whole()) << "no further out than everything";
}

TEST_F(TimelineTest, WasdZoomAndPan) {
    openAndShow();
    const double size = scene().window.size();
    press(Qt::Key_W);
    EXPECT_LT(scene().window.size(), size);
    const TimeRange zoomed = scene().window;
    press(Qt::Key_D);
    EXPECT_GT(scene().window.from, zoomed.from);
    press(Qt::Key_A);
    EXPECT_NEAR(scene().window.from, zoomed.from, zoomed.size() * 1e-6);
    press(Qt::Key_S);
    EXPECT_NEAR(scene().window.size(), size, size * 1e-6);
    press(Qt::Key_W);
    press(Qt::Key_0);
    EXPECT_FALSE(timeline().isZoomed());
}

TEST_F(TimelineTest, DragPansAndUndoZoomGoesBack) {
    openAndShow();
    press(Qt::Key_W);
    press(Qt::Key_W);
    const TimeRange before = scene().window;
    const QPoint from = emptySpot() + QPoint(400, 0);
    const double grabbed = timeAt(from.x());
    drag(from, from - QPoint(120, 0));
    EXPECT_NEAR(timeAt(from.x() - 120), grabbed, before.size() * 1e-6) << "what was grabbed stays under the pointer";
    EXPECT_NEAR(scene().window.size(), before.size(), before.size() * 1e-9);
    view->undoZoom();
    EXPECT_EQ(scene().window, before);
    view->undoZoom();
    EXPECT_EQ(scene().window, timeline().data().whole()) << "the keys pressed together are one step";
    view->redoZoom();
    view->redoZoom();
    EXPECT_NE(scene().window, before);
    view->resetZoom();
    EXPECT_FALSE(timeline().isZoomed());
}

TEST_F(TimelineTest, ClickSelectsStepAndLayerForAllViewsAndExplains) {
    openAndShow();
    const SpanRef span = find("stage2", 7);
    timeline().reveal(span);
    click(middleOf(span));
    ASSERT_TRUE(scene().selected);
    EXPECT_EQ(*scene().selected, span);
    EXPECT_EQ(workspace.cursor().step, 7);
    EXPECT_EQ(workspace.cursor().layer, index().at(span).layer);
    ASSERT_TRUE(idle());
    EXPECT_EQ(fact(QStringLiteral("Span")), QStringLiteral("stage2"));
    EXPECT_TRUE(fact(QStringLiteral("What it does")).contains(QStringLiteral("attention")));
    EXPECT_EQ(fact(QStringLiteral("Belongs to")), QStringLiteral("step 7, layer %1").arg(index().at(span).layer));
    EXPECT_FALSE(fact(QStringLiteral("Lasts")).isEmpty());
    EXPECT_FALSE(fact(QStringLiteral("Waited")).isEmpty());
    click(emptySpot());
    EXPECT_FALSE(scene().selected);
}

TEST_F(TimelineTest, ATransferSaysItsBytesAndWhoUsedThem) {
    openAndShow();
    const SpanRef transfer = find(kToDeviceName, 3);
    timeline().reveal(transfer);
    click(middleOf(transfer));
    ASSERT_EQ(scene().selected, transfer);
    ASSERT_TRUE(idle());
    const TraceReader reader(workspace.current()->key.path.toStdString());
    const TimelineSpan span = index().at(transfer);
    const LayerRecord layer = reader.layers(workspace.current()->key.runId, span.step).at(std::size_t(span.layer));
    EXPECT_TRUE(fact(QStringLiteral("Bytes")).contains(QStringLiteral("%1 blocks").arg(layer.h2dBlocks)))
        << fact(QStringLiteral("Bytes")).toStdString();
    EXPECT_TRUE(fact(QStringLiteral("Bandwidth")).contains(QStringLiteral("GB/s")));
    EXPECT_TRUE(fact(QStringLiteral("Arrows")).contains(QStringLiteral("stage2")));
    ASSERT_FALSE(scene().flows.empty());
    press(Qt::Key_BracketRight); // along the arrow
    ASSERT_TRUE(scene().selected);
    EXPECT_EQ(index().names()[std::size_t(index().at(*scene().selected).name)], "stage2");
    press(Qt::Key_BracketLeft);
    EXPECT_EQ(scene().selected, transfer);
}

TEST_F(TimelineTest, ShowsTheCursorOfTheOtherViews) {
    openAndShow();
    Cursor cursor = workspace.cursor();
    cursor.step = 5;
    workspace.setCursor(cursor);
    ASSERT_TRUE(scene().cursorStep);
    EXPECT_EQ(scene().cursorStep->from, double(index().at(find("decode", 5)).startNs));
    press(Qt::Key_Right);
    EXPECT_EQ(workspace.cursor().step, 6);
    press(Qt::Key_Down);
    EXPECT_EQ(workspace.cursor().layer, 1);
    press(Qt::Key_End);
    EXPECT_EQ(workspace.cursor().step, workspace.current()->row.steps - 1);
}

TEST_F(TimelineTest, DoubleClickFitsASpanAndThenEverything) {
    openAndShow();
    const SpanRef span = find("layer", 4);
    timeline().reveal(span);
    QTest::mouseDClick(&timeline(), Qt::LeftButton, {}, middleOf(span));
    const TimelineSpan fitted = index().at(span);
    EXPECT_NEAR(scene().window.size(), double(fitted.durationNs) * 1.2, 2);
    EXPECT_LT(scene().window.from, double(fitted.startNs));
    EXPECT_GT(scene().window.to, double(fitted.endNs()));
    QTest::mouseDClick(&timeline(), Qt::LeftButton, {}, emptySpot());
    EXPECT_FALSE(timeline().isZoomed());
}

TEST_F(TimelineTest, ShiftDragMeasuresARangeAndTabulatesItsSelfTimes) {
    openAndShow();
    const QPoint from = emptySpot() + QPoint(100, 0), to = from + QPoint(500, 0);
    const double a = timeAt(from.x()), b = timeAt(to.x());
    drag(from, to, Qt::ShiftModifier);
    ASSERT_TRUE(scene().range);
    EXPECT_NEAR(scene().range->from, a, 1);
    EXPECT_NEAR(scene().range->to, b, 1);
    EXPECT_FALSE(timeline().isZoomed()) << "measuring is not panning";
    auto& table = child<QTableWidget>("selfTimes");
    const auto wanted =
        selfTimes(index(), std::int64_t(std::floor(a)), std::int64_t(std::ceil(b)), SelfTimeBy::Component);
    ASSERT_EQ(table.rowCount(), int(wanted.size()));
    EXPECT_EQ(table.item(0, 0)->text().toStdString(), wanted[0].name) << "longest first";
    EXPECT_EQ(table.item(0, 2)->data(Qt::UserRole).toDouble(), double(wanted[0].selfNs));
    table.sortByColumn(0, Qt::AscendingOrder);
    EXPECT_LE(table.item(0, 0)->text(), table.item(1, 0)->text());
    table.sortByColumn(4, Qt::AscendingOrder); // by number: 9 before 10
    EXPECT_LE(table.item(0, 4)->data(Qt::UserRole).toDouble(), table.item(1, 4)->data(Qt::UserRole).toDouble());
    child<QPushButton>("copyTimes").click();
    const QStringList lines = QApplication::clipboard()->text().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    EXPECT_EQ(lines.size(), table.rowCount() + 1);
    EXPECT_TRUE(lines[0].startsWith(QStringLiteral("name\ttrack\tself_ns")));
    EXPECT_EQ(view->exportCsv().count(QLatin1Char('\n')), table.rowCount() + 1);
    child<QComboBox>("timesGrouping").setCurrentIndex(1);
    EXPECT_GT(table.rowCount(), 0);
    press(Qt::Key_F);
    EXPECT_NEAR(scene().window.size(), (b - a) * 1.1, (b - a) * 0.01) << "F fits the range";
    press(Qt::Key_Escape);
    EXPECT_FALSE(scene().range);
}

TEST_F(TimelineTest, EscapeGivesUpADrag) {
    openAndShow();
    press(Qt::Key_W);
    const TimeRange before = scene().window;
    const QPoint from = emptySpot() + QPoint(300, 0);
    mouse(QEvent::MouseButtonPress, from, Qt::LeftButton, Qt::LeftButton, {});
    mouse(QEvent::MouseMove, from + QPoint(150, 0), Qt::NoButton, Qt::LeftButton, {});
    EXPECT_NE(scene().window, before);
    press(Qt::Key_Escape);
    EXPECT_EQ(scene().window, before);
}

TEST_F(TimelineTest, MinimapMovesTheWindow) {
    openAndShow();
    for (int i = 0; i < 8; ++i) press(Qt::Key_W);
    const QRect map = timeline().areas().minimap;
    drag({map.left() + 100, map.center().y()}, {map.left() + map.width() * 3 / 4, map.center().y()});
    const TimeRange whole = timeline().data().whole();
    const double centre = (scene().window.from + scene().window.to) / 2;
    EXPECT_NEAR(centre, whole.from + whole.size() * 0.75, whole.size() * 0.01);
    drag({map.left() + 50, map.center().y()}, {map.left() + 250, map.center().y()}, Qt::ShiftModifier);
    EXPECT_NEAR(scene().window.size(), whole.size() * 200 / map.width(), whole.size() * 0.01)
        << "shows what was dragged over";
}

TEST_F(TimelineTest, SearchGoesFromHitToHit) {
    openAndShow();
    press(Qt::Key_Slash);
    auto& search = child<QLineEdit>("search");
    search.setText(QStringLiteral("offload"));
    const auto matches = namesMatching(index(), "offload");
    const std::size_t hits = matchCount(index(), matches);
    ASSERT_GT(hits, 3u);
    EXPECT_TRUE(child<QLabel>("hits").text().startsWith(QString::number(hits)))
        << child<QLabel>("hits").text().toStdString();
    QTest::keyClick(&search, Qt::Key_Return);
    ASSERT_TRUE(scene().selected);
    const SpanRef first = *scene().selected;
    EXPECT_EQ(index().names()[std::size_t(index().at(first).name)], "offloading");
    EXPECT_EQ(child<QLabel>("hits").text(), QStringLiteral("1 of %1").arg(hits));
    press(Qt::Key_N);
    const SpanRef second = *scene().selected;
    EXPECT_EQ(child<QLabel>("hits").text(), QStringLiteral("2 of %1").arg(hits));
    EXPECT_GT(index().at(second).startNs, index().at(first).startNs);
    const double middle = (double(index().at(second).startNs) + double(index().at(second).endNs())) / 2;
    EXPECT_TRUE(middle > scene().window.from && middle < scene().window.to) << "a hit is brought into view";
    press(Qt::Key_N, Qt::ShiftModifier);
    EXPECT_EQ(scene().selected, first);
    press(Qt::Key_N, Qt::ShiftModifier); // before the first: round to the last
    EXPECT_GT(index().at(*scene().selected).startNs, index().at(second).startNs);
    EXPECT_EQ(child<QLabel>("hits").text(), QStringLiteral("%1 of %1").arg(hits));
    // A stage is found by what it does, too.
    search.setText(QStringLiteral("attention"));
    QTest::keyClick(&search, Qt::Key_Return);
    EXPECT_EQ(index().names()[std::size_t(index().at(*scene().selected).name)], "stage2");
    search.setText(QStringLiteral("nothing like it"));
    EXPECT_TRUE(child<QLabel>("hits").text().contains(QStringLiteral("no span")));
    QTest::keyClick(&search, Qt::Key_Escape);
    EXPECT_TRUE(search.text().isEmpty());
}

TEST_F(TimelineTest, HoveringTellsTheSpanAndTheCountersValues) {
    openAndShow();
    QSignalSpy hovered(&timeline(), &TimelineCanvas::hovered);
    const SpanRef span = find("layer", 3);
    timeline().reveal(span);
    mouse(QEvent::MouseMove, middleOf(span), Qt::NoButton, {}, {});
    ASSERT_EQ(hovered.size(), 1);
    EXPECT_EQ(hovered[0][0].value<std::optional<SpanRef>>(), span);
    ASSERT_TRUE(scene().hoverNs);
    QEvent leave(QEvent::Leave);
    QApplication::sendEvent(&timeline(), &leave);
    EXPECT_FALSE(scene().hoverNs);
}

TEST_F(TimelineTest, TracksFoldAndTheWheelOverLabelsScrolls) {
    openAndShow();
    const std::size_t rows = scene().layout.rows.size();
    click(labelOf(QString::fromLatin1(kHostTrack)));
    EXPECT_EQ(scene().layout.rows.size(), rows - 2) << "three depths become one";
    timeline().reveal(find("ffn", 2)); // what is searched for is unfolded
    EXPECT_EQ(scene().layout.rows.size(), rows);
    view->resize(900, 420);
    QCoreApplication::processEvents();
    ASSERT_GT(scene().layout.height, timeline().areas().body.height());
    wheel({30, timeline().areas().gutter.top() + 10}, -2);
    EXPECT_GT(scene().scroll, 0);
}

TEST_F(TimelineTest, NotesAreLeftEditedAndRemovedInTheTrace) {
    openAndShow();
    drag(emptySpot() + QPoint(100, 0), emptySpot() + QPoint(300, 0), Qt::ShiftModifier);
    const TimeRange range = *scene().range;
    answer(QStringLiteral("the link is busy here"));
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    ASSERT_EQ(timeline().data().notes.size(), 1u);
    EXPECT_EQ(timeline().data().notes[0].durationNs, std::int64_t(range.size()));
    press(Qt::Key_Escape);
    answer(QString()); // cancelled: nothing is kept
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    EXPECT_EQ(timeline().data().notes.size(), 1u);
    const TraceReader reader(workspace.current()->key.path.toStdString());
    EXPECT_EQ(readNotes(reader, 1).at(0).text, "the link is busy here");
    panel().setCurrentIndex(2);
    auto& table = child<QTableWidget>("notes");
    ASSERT_EQ(table.rowCount(), 1);
    table.selectRow(0);
    answer(QStringLiteral("and now it is not"));
    child<QPushButton>("editNote").click();
    ASSERT_TRUE(idle());
    EXPECT_EQ(readNotes(reader, 1).at(0).text, "and now it is not");
    table.selectRow(0);
    child<QPushButton>("removeNote").click();
    ASSERT_TRUE(idle());
    EXPECT_TRUE(readNotes(reader, 1).empty());
    EXPECT_EQ(table.rowCount(), 0);
}

TEST_F(TimelineTest, ChangesOfNotesAreTakenBackOneAfterTheOther) {
    openAndShow();
    const TraceReader reader(workspace.current()->key.path.toStdString());
    const auto texts = [&] {
        std::vector<std::string> all;
        for (const Note& note : readNotes(reader, 1)) all.push_back(note.text);
        return all;
    };
    const auto undo = [&] {
        QTest::keySequence(&child<QTableWidget>("notes"), QKeySequence(QKeySequence::Undo));
        ASSERT_TRUE(idle());
    };
    using Texts = std::vector<std::string>;
    answer(QStringLiteral("slow"));
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    panel().setCurrentIndex(2);
    auto& table = child<QTableWidget>("notes");
    table.setFocus();
    table.selectRow(0);
    answer(QStringLiteral("slower"));
    QTest::keyClick(&table, Qt::Key_F2);
    ASSERT_TRUE(idle());
    ASSERT_EQ(texts(), Texts{"slower"});
    table.selectRow(0);
    QTest::keyClick(&table, Qt::Key_Delete);
    ASSERT_TRUE(idle());
    ASSERT_EQ(texts(), Texts{});
    EXPECT_TRUE(child<QPushButton>("undoNote").isEnabled());
    undo();
    EXPECT_EQ(texts(), Texts{"slower"});
    EXPECT_EQ(table.rowCount(), 1);
    undo();
    EXPECT_EQ(texts(), Texts{"slow"});
    undo();
    EXPECT_EQ(texts(), Texts{});
    EXPECT_FALSE(child<QPushButton>("undoNote").isEnabled());
    undo();
    EXPECT_EQ(texts(), Texts{}) << "nothing is left to take back";
}

TEST_F(TimelineTest, ANoteThatIsClickedComesToTheMiddleAsNearAsTheWindowIs) {
    openAndShow({.decodeSteps = 20});
    answer(QStringLiteral("here"));
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    const double at = double(timeline().data().notes.at(0).startNs);
    const TimelineSpan late = index().at(find("decode", 18));
    timeline().zoomTo({double(late.startNs), double(late.endNs())});
    const double size = scene().window.size();
    emit panel().noteChosen(timeline().data().notes.at(0).id);
    EXPECT_NEAR(scene().window.size(), size, size * 1e-6);
    EXPECT_NEAR((scene().window.from + scene().window.to) / 2, at, size * 0.01);
    emit panel().noteChosen(timeline().data().notes.at(0).id);
    EXPECT_NEAR(scene().window.size(), size, size * 1e-6) << "however often it is clicked";
}

TEST_F(TimelineTest, AnotherTimelineOnTheTraceHasTheNoteAtOnce) {
    openAndShow();
    Workspace otherWorkspace;
    otherWorkspace.open(workspace.current()->key.path);
    std::unique_ptr<View> other;
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == "timeline") other.reset(entry.make(otherWorkspace, nullptr));
    other->resize(800, 600);
    other->show();
    auto& canvas = *other->findChild<TimelineCanvas*>();
    ASSERT_TRUE(waitFor([&] { return otherWorkspace.current() && canvas.data().index.size() == index().size(); }));
    answer(QStringLiteral("seen in both"));
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(waitFor([&] { return canvas.data().notes.size() == 1; }));
    EXPECT_EQ(other->findChild<QTableWidget*>("notes")->rowCount(), 1);
    other.reset(); // before its workspace
}

TEST_F(TimelineTest, ANoteGoesToWhatIsSeen) {
    openAndShow({.decodeSteps = 20});
    const auto leave = [&] { // the note with the newest id
        const std::size_t before = timeline().data().notes.size();
        answer(QStringLiteral("here"));
        press(Qt::Key_M);
        EXPECT_TRUE(waitFor([&] { return timeline().data().notes.size() > before; }));
        const auto& notes = timeline().data().notes;
        return *std::max_element(notes.begin(), notes.end(), [](const Note& a, const Note& b) { return a.id < b.id; });
    };
    const TimelineSpan second = index().at(find("decode", 2)), last = index().at(find("decode", 18));
    timeline().measure(TimeRange{double(second.startNs), double(second.endNs())});
    timeline().zoomTo({double(last.startNs), double(last.endNs())}); // the range is not in view any more
    const Note away = leave();
    EXPECT_GE(away.startNs, last.startNs);
    EXPECT_LE(away.startNs, last.endNs());
    EXPECT_EQ(away.durationNs, 0);
    timeline().zoomTo({double(second.startNs), double(second.endNs())});
    EXPECT_EQ(leave().durationNs, second.durationNs) << "in view, it is the range that is meant";
}

TEST_F(TimelineTest, ANoteThatCannotBeKeptSaysWhy) {
    openAndShow();
    std::filesystem::rename(workspace.current()->key.path.toStdString(), folder / "moved.kvtrace");
    answer(QStringLiteral("lost"));
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    bool said = false;
    for (const QLabel* label : panel().findChildren<QLabel*>())
        said = said || label->text().contains(QStringLiteral("no longer there"));
    EXPECT_TRUE(said);
    EXPECT_EQ(panel().currentIndex(), 2);
}

TEST_F(TimelineTest, ALiveRunGrowsWithoutStartingOver) {
    const RunShape shape{.decodeSteps = 40};
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto record = [&](int steps) {
        generator.recordNext(recorder, steps);
        recorder.flush();
        workspace.traceAdvanced();
    };
    record(5);
    workspace.addLive({path, 1});
    show();
    ASSERT_TRUE(waitFor([&] { return timeline().data().counters.size() == 5; }));
    const std::size_t before = index().size();
    const SpanRef kept = find("layer", 2);
    click(middleOf(kept));
    ASSERT_TRUE(scene().selected);
    const std::int64_t start = index().at(*scene().selected).startNs;
    record(20);
    ASSERT_TRUE(waitFor([&] { return timeline().data().counters.size() == 25; }));
    ASSERT_TRUE(idle());
    EXPECT_GT(index().size(), before);
    EXPECT_FALSE(timeline().isZoomed()) << "a view of everything follows the run";
    ASSERT_TRUE(scene().selected);
    EXPECT_EQ(index().at(*scene().selected).startNs, start) << "what was chosen stays chosen";
    press(Qt::Key_W);
    const TimeRange zoomed = scene().window;
    record(16);
    ASSERT_TRUE(waitFor([&] { return timeline().data().counters.size() == 41; }));
    EXPECT_EQ(scene().window, zoomed) << "a zoomed view stays";
    recorder.endRun(RunStatus::Finished, {});
    recorder.flush();
    workspace.finishLive({path, 1});
    ASSERT_TRUE(idle());
    SpanIndex whole;
    whole.append(readSpans(TraceReader(path.toStdString()), 1, {}, 1'000'000));
    EXPECT_EQ(index().size(), whole.size()) << "nothing twice, nothing missing";
}

TEST_F(TimelineTest, ADamagedTraceSaysSo) {
    const QString path = recorded("damaged.kvtrace", {.decodeSteps = 400});
    open(path);
    QFile damaged(path);
    ASSERT_TRUE(damaged.open(QIODevice::ReadWrite));
    QByteArray bytes = damaged.readAll();
    ASSERT_GT(bytes.size(), 300'000);
    for (qsizetype at = 40'000; at < bytes.size(); ++at) bytes[at] = char(at * 31);
    damaged.resize(0);
    damaged.seek(0);
    damaged.write(bytes);
    damaged.close();
    QSignalSpy failed(&workspace, &Workspace::failed);
    show();
    QString said = child<QLabel>("emptyText").text() + child<QLabel>("timelineNote").text();
    for (const auto& call : failed) said += call[0].toString();
    EXPECT_TRUE(said.contains(QStringLiteral("damaged.kvtrace"))) << said.toStdString();
}

TEST_F(TimelineTest, ExportsPicturesInThreeFormatsWhereTextStaysText) {
    openAndShow();
    for (const char* suffix : {"png", "svg", "pdf"})
        ASSERT_TRUE(view->exportImage(file(std::string("picture.") + suffix), {900, 600})) << suffix;
    EXPECT_EQ(QImage(file("picture.png")).size(), QSize(900, 600));
    QFile svg(file("picture.svg"));
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    const QByteArray text = svg.readAll();
    EXPECT_TRUE(text.contains("<text"));
    EXPECT_TRUE(text.contains("ynthetic")) << "the title names the run";
    EXPECT_TRUE(text.contains("hit rate"));
    EXPECT_FALSE(view->exportImage(file("picture.bmp"), {900, 600}));
}

class TimelinePicture : public TimelineTest, public testing::WithParamInterface<const char*> {};

/// The picture against what the spans say: whatever the theme, a span's pixels have its stage's colour.
TEST_P(TimelinePicture, ShowsEveryStageInItsColour) {
    const QString id = QString::fromLatin1(GetParam());
    const Theme& theme = Theme::byId(id);
    Theme::apply(*qApp, theme);
    openAndShow();
    timeline().reveal(find("layer", 6));
    timeline().zoomTo({double(index().at(find("decode", 6)).startNs), double(index().at(find("decode", 6)).endNs())});
    const QImage image = timeline().grab().toImage();
    int checked = 0;
    for (int lane = 0; lane < index().laneCount(); ++lane) {
        const TimelineRow* row = scene().layout.rowOf(lane);
        for (std::uint32_t i = 0; row && i < index().lane(lane).spans; ++i) {
            const TimelineSpan span = index().at({lane, i});
            const TimelineAreas areas = timeline().areas();
            const double left = areas.xOf(double(span.startNs), scene().window),
                         right = areas.xOf(double(span.endNs()), scene().window);
            if (left < areas.body.left() || right > areas.body.right() || right - left < 6) continue;
            const int y = areas.body.top() + row->y - scene().scroll + 2; // above the text
            const QColor expected = QColor::fromRgb(spanColour(index().components()[std::size_t(span.name)], theme));
            const QColor seen = image.pixelColor(int(left) + 2, y);
            // The shared cursor's band lies over everything with an alpha of 14 / 255.
            EXPECT_LE(std::abs(seen.red() - expected.red()), 16) << index().names()[std::size_t(span.name)];
            EXPECT_LE(std::abs(seen.green() - expected.green()), 16);
            EXPECT_LE(std::abs(seen.blue() - expected.blue()), 16);
            ++checked;
        }
    }
    EXPECT_GT(checked, 20);
    Theme::apply(*qApp, Theme::light());
}

/// A single short span in an otherwise idle stretch must not vanish, however far the window is zoomed out.
TEST_P(TimelinePicture, NeverLosesASingleSpan) {
    const QString id = QString::fromLatin1(GetParam());
    const Theme& theme = Theme::byId(id);
    TimelineData data;
    SpanBatch batch;
    batch.texts = {"stream 1", "ffn"};
    batch.spans = {{0, 1, 0, 1, 0, 0, 0}, {500'000'000, 1, 0, 1, 0, 0, 0}, {999'999'999, 1, 0, 1, 0, 0, 0}};
    data.index.append(batch);
    TimelineScene scene;
    scene.data = &data;
    scene.layout = TimelineLayout::of(data, {});
    scene.window = {0, 1e9};
    QImage image(800, 300, QImage::Format_RGB32);
    QPainter painter(&image);
    TimelinePainter().paint(painter, image.size(), scene, theme, QApplication::font(), 1);
    painter.end();
    const TimelineAreas areas = TimelineAreas::of(image.size());
    std::vector<int> inked;
    for (int x = areas.body.left(); x <= areas.body.right(); ++x) {
        const QColor pixel = image.pixelColor(x, areas.body.top() + scene.layout.rows[0].y + 4);
        const QColor paper = image.pixelColor(x, areas.body.top() + 1);
        if (pixel != paper) inked.push_back(x - areas.body.left());
    }
    EXPECT_EQ(inked, (std::vector<int>{0, areas.body.width() / 2, areas.body.width() - 1}));
}

INSTANTIATE_TEST_SUITE_P(Themes, TimelinePicture, testing::Values("light", "dark"),
                         [](const auto& p) { return std::string(p.param); });

TEST(TimeTicks, AreRoundDistinctAndDense) {
    for (const TimeRange window : {TimeRange{0, 20}, TimeRange{0, 1e9}, TimeRange{253'123'456, 253'123'999},
                                   TimeRange{-5e6, 7e8}, TimeRange{1e12, 1e12 + 40}}) {
        const auto ticks = timeTicks(window, 1200);
        ASSERT_GE(ticks.size(), 3u);
        EXPECT_LE(ticks.size(), 14u);
        std::set<QString> labels;
        for (const TimeTick& tick : ticks) {
            EXPECT_TRUE(labels.insert(tick.label).second) << tick.label.toStdString();
            EXPECT_LT(tick.label.size(), 20);
        }
    }
    EXPECT_EQ(formatTime(1'234'567, 1), QStringLiteral("1.234567 ms"));
    EXPECT_EQ(formatTime(1'234'567, 1000), QStringLiteral("1.235 ms"));
    EXPECT_EQ(formatTime(0, 10), QStringLiteral("0"));
    EXPECT_EQ(formatTime(-2'000'000'000, 1e9), QStringLiteral("-2 s"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
