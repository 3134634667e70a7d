// The timeline around its spans: what it opens on, rows and labels, counters, the shared filter, the inspector.
#include "tests/ui/timeline_fixture.h"

#include "profiler/format/counter_sample.h"
#include "tests/profiler/sql_rows.h"
#include "ui/views/timeline/timeline_view.h"

#include <QLabel>
#include <QSignalSpy>
#include <QTableWidget>
#include <QToolButton>

#include <cmath>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineTracks : public TimelineTest {
protected:
    TimelineView& timelineView() { return dynamic_cast<TimelineView&>(*view); }
};

TEST_F(TimelineTracks, OpensOnTheStepsAndSaysWhatIsBeyondThem) {
    open(measured("run.kvtrace"));
    show();
    const TimeRange home = scene().window, whole = data().whole();
    const double steps = double(lastStep - firstStep);
    EXPECT_NEAR(home.from, double(firstStep), steps * 0.011) << "a margin of 1 %";
    EXPECT_NEAR(home.to, double(lastStep), steps * 0.011);
    EXPECT_LT(whole.from, home.from - steps * 0.9);
    EXPECT_GT(whole.to, home.to + steps * 0.4);
    EXPECT_FALSE(timeline().isZoomed());
    EXPECT_TRUE(beyondText(scene(), true).contains(QStringLiteral("before the steps")));
    EXPECT_TRUE(beyondText(scene(), false).contains(QStringLiteral("after the steps")));
    press(Qt::Key_0);
    EXPECT_EQ(scene().window, whole);
    EXPECT_TRUE(beyondText(scene(), true).isEmpty()) << "nothing is beyond everything";
    press(Qt::Key_F);
    EXPECT_EQ(scene().window, home) << "F fits the steps where nothing is chosen";
    const QRect hint = beyondRect(scene(), timeline().areas(), timeline().font(), true);
    click({hint.left() + 4, hint.center().y()});
    EXPECT_EQ(scene().window, whole) << "the sign leads there";
    QTest::mouseDClick(&timeline(), Qt::LeftButton, {}, emptySpot());
    EXPECT_EQ(scene().window, home);
    QTest::mouseDClick(&timeline(), Qt::LeftButton, {}, emptySpot());
    EXPECT_EQ(scene().window, whole);
    view->undoZoom();
    EXPECT_EQ(scene().window, home);
    child<QToolButton>("showAll").click();
    EXPECT_EQ(scene().window, whole);
    view->resetZoom();
    EXPECT_EQ(scene().window, home);
}

TEST_F(TimelineTracks, GoesToTheDecodeStepsAndFollowsTheCursorOutOfTheWindow) {
    open(measured("run.kvtrace"));
    show();
    press(Qt::Key_1);
    const TimelineSpan first = index().at(find("decode"));
    EXPECT_NEAR(scene().window.size(), double(first.durationNs) * 1.1, 4);
    EXPECT_LT(scene().window.from, double(first.startNs));
    EXPECT_GT(scene().window.to, double(first.endNs()));
    EXPECT_EQ(workspace.cursor().step, first.step) << "all views look at it";
    for (int i = 0; i < 4; ++i) child<QToolButton>("nextStep").click();
    EXPECT_EQ(workspace.cursor().step, first.step + 4);
    ASSERT_TRUE(scene().cursorStep);
    EXPECT_TRUE(scene().cursorStep->meets(scene().window)) << "the window went along";
    EXPECT_NEAR(scene().window.size(), double(first.durationNs) * 1.1, double(first.durationNs))
        << "by panning, not by zooming out";
    child<QToolButton>("previousStep").click();
    EXPECT_EQ(workspace.cursor().step, first.step + 3);
    press(Qt::Key_2);
    EXPECT_LE(scene().window.from, double(first.startNs));
    EXPECT_GE(scene().window.to, double(lastStep));
    EXPECT_GT(scene().window.from, double(first.startNs) - double(lastStep - first.startNs) * 0.02)
        << "without the prefill";
    child<QToolButton>("firstDecode").click();
    Cursor cursor = workspace.cursor(); // from another view
    cursor.step = first.step + 9;
    workspace.setCursor(cursor);
    EXPECT_TRUE(scene().cursorStep->meets(scene().window));
    const TimeRange stays = scene().window;
    cursor.layer = 1;
    workspace.setCursor(cursor);
    EXPECT_EQ(scene().window, stays) << "a step in sight moves nothing";
}

TEST_F(TimelineTracks, KeysAndWheelInAllTheirForms) {
    open(measured("run.kvtrace"));
    show();
    const TimeRange home = scene().window;
    press(Qt::Key_Plus);
    EXPECT_NEAR(scene().window.size(), home.size() * 0.8, 1);
    press(Qt::Key_Minus);
    EXPECT_NEAR(scene().window.size(), home.size(), 1);
    press(Qt::Key_W, Qt::ShiftModifier);
    EXPECT_NEAR(scene().window.size(), home.size() * std::pow(0.8, 3), 1) << "three times as fast";
    const double size = scene().window.size();
    double from = scene().window.from;
    press(Qt::Key_D);
    const double once = scene().window.from - from;
    EXPECT_GT(once, 0);
    from = scene().window.from;
    press(Qt::Key_A, Qt::ShiftModifier);
    EXPECT_NEAR(from - scene().window.from, once * 3, 1);
    from = scene().window.from;
    wheel(timeline().areas().body.center(), -1, Qt::ShiftModifier);
    EXPECT_NEAR(scene().window.from - from, size * 0.1, size * 0.001) << "Shift and wheel pans";
    EXPECT_NEAR(scene().window.size(), size, 1);
    const QPoint ruler(timeline().areas().ruler.left() + 300, timeline().areas().ruler.center().y());
    const double a = timeAt(ruler.x()), b = timeAt(ruler.x() + 200);
    drag(ruler, ruler + QPoint(200, 0));
    ASSERT_TRUE(scene().range) << "a drag on the ruler measures";
    EXPECT_NEAR(scene().range->from, a, 1);
    EXPECT_NEAR(scene().range->to, b, 1);
    press(Qt::Key_End);
    EXPECT_EQ(workspace.cursor().step, workspace.current()->row.steps - 1);
    press(Qt::Key_Left, Qt::ShiftModifier);
    EXPECT_EQ(workspace.cursor().step, workspace.current()->row.steps - 11);
    press(Qt::Key_Home);
    EXPECT_EQ(workspace.cursor().step, 0);
    press(Qt::Key_Down);
    press(Qt::Key_Down);
    press(Qt::Key_Up);
    EXPECT_EQ(workspace.cursor().layer, 1);
}

TEST_F(TimelineTracks, RowsGrowToFillTheHeight) {
    open(measured("run.kvtrace"));
    show({1200, 1300});
    const int body = timeline().areas().body.height();
    int least = 0;
    for (const TimelineRow& each : scene().layout.rows) {
        EXPECT_LE(each.height, each.curve >= 0 ? TimelineLayout::kMostCurveHeight : TimelineLayout::kMostLaneHeight);
        EXPECT_GE(each.height, each.curve >= 0 ? TimelineLayout::kCurveHeight : TimelineLayout::kLaneHeight);
        least += each.curve >= 0 ? TimelineLayout::kCurveHeight : TimelineLayout::kLaneHeight;
    }
    ASSERT_LT(least, body) << "or the test shows nothing";
    EXPECT_LE(scene().layout.height, body) << "no more than there is";
    EXPECT_GT(scene().layout.height, body * 9 / 10);
    for (std::size_t i = 1; i < scene().layout.rows.size(); ++i)
        EXPECT_GE(scene().layout.rows[i].y, scene().layout.rows[i - 1].y + scene().layout.rows[i - 1].height);
    view->resize(900, 480);
    QCoreApplication::processEvents();
    EXPECT_EQ(row(QString::fromLatin1(kHostTrack)).height, TimelineLayout::kLaneHeight);
    EXPECT_GT(scene().layout.height, timeline().areas().body.height());
    press(Qt::Key_PageDown);
    EXPECT_GT(scene().scroll, 0);
    press(Qt::Key_PageUp);
    EXPECT_EQ(scene().scroll, 0);
    wheel(timeline().areas().body.center(), -2, Qt::ControlModifier);
    EXPECT_GT(scene().scroll, 0);
}

/// Beside both docks of a window of 1100 x 700 there are some 480 pixels.
TEST_F(TimelineTracks, FitsASmallWindow) {
    open(measured("run.kvtrace"));
    show({480, 420});
    EXPECT_LE(view->minimumSizeHint().width(), 480);
    EXPECT_EQ(view->width(), 480);
    EXPECT_FALSE(child<QToolButton>("leaveNote").isVisible()) << "a key and a menu do it as well";
    EXPECT_TRUE(child<QToolButton>("nextStep").isVisible());
    for (const QToolButton* button : view->findChildren<QToolButton*>())
        EXPECT_TRUE(!button->isVisible() || button->mapTo(view.get(), QPoint(button->width(), 0)).x() <= 480)
            << button->text().toStdString();
    view->resize(1000, 420);
    QCoreApplication::processEvents();
    EXPECT_TRUE(child<QToolButton>("leaveNote").isVisible());
    view->resize(480, 420);
    QCoreApplication::processEvents();
    EXPECT_GE(timeline().areas().body.width(), 200);
    EXPECT_GE(timeline().areas().body.height(), 60);
    EXPECT_LE(timeline().mapTo(view.get(), QPoint(0, timeline().height())).y(),
              panel().mapTo(view.get(), QPoint(0, 0)).y())
        << "the panel covers nothing";
    EXPECT_TRUE(view->grab().save(file("small.png")));
    if (qEnvironmentVariableIsSet("KVSCOPE_KEEP_PICTURES"))
        QFile::copy(file("small.png"), qEnvironmentVariable("KVSCOPE_KEEP_PICTURES") + QStringLiteral("/small.png"));
}

TEST_F(TimelineTracks, TheLabelsAreWideEnoughAndCanBeDragged) {
    open(measured("run.kvtrace"));
    show();
    const int fitting = timeline().areas().gutter.width();
    const QFontMetrics metrics(timeline().font());
    EXPECT_GT(fitting, metrics.horizontalAdvance(QStringLiteral("copies host to device")));
    const auto edge = [&] { return QPoint(timeline().areas().body.left(), timeline().areas().body.center().y()); };
    const TimeRange window = scene().window;
    drag(edge(), edge() + QPoint(90, 0));
    EXPECT_NEAR(timeline().areas().gutter.width(), fitting + 90, 2);
    EXPECT_EQ(scene().window, window) << "nothing was panned";
    const QVariantMap kept = timelineView().remembered();
    QTest::mouseDClick(&timeline(), Qt::LeftButton, {}, edge());
    EXPECT_EQ(timeline().areas().gutter.width(), fitting) << "as wide as it needs to be";
    timelineView().recall(kept);
    EXPECT_NEAR(timeline().areas().gutter.width(), fitting + 90, 2);
    timelineView().recall({{QStringLiteral("gutter"), QStringLiteral("nonsense")}});
    EXPECT_EQ(timeline().areas().gutter.width(), fitting);
    timelineView().recall({{QStringLiteral("gutter"), 1'999}});
    EXPECT_LE(timeline().areas().gutter.width(), timeline().width() / 2) << "spans keep their half";
}

TEST_F(TimelineTracks, CountersOfTheTraceAreCurvesWithUnits) {
    open(measured("run.kvtrace"));
    show();
    const TimelineRow toDevice = row(QStringLiteral("PCIe to device"));
    EXPECT_TRUE(hasRow(QStringLiteral("PCIe to host")));
    EXPECT_FALSE(hasRow(QStringLiteral("GPU records lost"))) << "nothing was lost";
    const double interval = double((lastStep - firstStep) / 10);
    EXPECT_NEAR(curveLargest(data(), toDevice.curve), 1e7 / (interval * 1e-9), 1e7 / (interval * 1e-9) * 1e-6);
    const double third = double(firstStep) + 2.5 * interval;
    EXPECT_NEAR(curveAt(data(), toDevice.curve, third), 3e6 / (interval * 1e-9), 3e6 / (interval * 1e-9) * 1e-6);
    EXPECT_TRUE(std::isnan(curveAt(data(), toDevice.curve, double(firstStep) - interval)));
    EXPECT_TRUE(curveText(data(), toDevice.curve, 30e9).contains(QStringLiteral("30 GB/s")))
        << curveText(data(), toDevice.curve, 30e9).toStdString();
    QSignalSpy hovered(&timeline(), &TimelineCanvas::curveHovered);
    mouse(QEvent::MouseMove,
          {int(timeline().areas().xOf(third, scene().window)),
           timeline().areas().body.top() + toDevice.y + toDevice.height / 2},
          Qt::NoButton, {}, {});
    ASSERT_EQ(hovered.size(), 1);
    EXPECT_EQ(hovered[0][0].toInt(), toDevice.curve);
    const QString tip = curveTooltip(data(), toDevice.curve, third);
    EXPECT_TRUE(tip.contains(curveText(data(), toDevice.curve, curveAt(data(), toDevice.curve, third))));
    EXPECT_TRUE(tip.contains(curveText(data(), toDevice.curve, curveLargest(data(), toDevice.curve))));
    EXPECT_TRUE(tip.contains(QStringLiteral("packet headers")));
}

/// Without selections the timeline draws an upper bound of the blocks on the device; with them it draws the exact
/// number and says so.
TEST_F(TimelineTracks, OccupancyIsExactWhereSelectionsWereRecordedAndABoundElsewhere) {
    open(measured("run.kvtrace"));
    show();
    ASSERT_TRUE(hasRow(QString::fromLatin1(kResidentKv)));
    EXPECT_FALSE(hasRow(QStringLiteral("device slots filled (at most)")));
    const TimelineRow resident = row(QString::fromLatin1(kResidentKv));
    EXPECT_TRUE(curveHelp(data(), resident.curve).contains(QStringLiteral("exact")));
    const double capacity = curveScale(data(), resident.curve).second;
    EXPECT_LE(curveLargest(data(), resident.curve), capacity);
    test::sql((folder / "run.kvtrace").string(), "DELETE FROM selection", SQLITE_OPEN_READWRITE);
    const QString again = file("again.kvtrace");
    ASSERT_TRUE(QFile::copy(file("run.kvtrace"), again));
    open(again);
    ASSERT_TRUE(idle());
    EXPECT_FALSE(hasRow(QString::fromLatin1(kResidentKv)));
    EXPECT_TRUE(hasRow(QStringLiteral("device slots filled (at most)")));
}

TEST_F(TimelineTracks, WhatTheOracleMeasuredStandsBesideBytesAndTimeOrIsSaidToBeMissing) {
    const QString sentence = QStringLiteral("Recall and lost attention mass were not measured");
    open(recorded("measured.kvtrace", {.decodeSteps = 20, .oracle = true}));
    show();
    const auto note = [&] { return child<QLabel>("timelineNote").text(); };
    ASSERT_TRUE(waitFor([&] { return hasRow(QString::fromLatin1(kOracleRecall)); }));
    ASSERT_TRUE(hasRow(QString::fromLatin1(kLostMass)));
    EXPECT_FALSE(note().contains(sentence));
    const TimelineRow recall = row(QString::fromLatin1(kOracleRecall)), lost = row(QString::fromLatin1(kLostMass));
    EXPECT_LT(row(QStringLiteral("host to device")).y, recall.y);
    EXPECT_LT(recall.y, row(QString::fromLatin1(kHostTrack)).y) << "above the spans";
    EXPECT_NEAR(curveScale(data(), recall.curve).second, 102, 1e-9) << "of 100 %";
    std::int64_t from = 0, to = 0;
    ASSERT_TRUE(data().counters.timesOf(5, from, to));
    const auto sql = [&](const char* value) {
        return std::stod(test::value(file("measured.kvtrace").toStdString(),
                                     std::string("SELECT ") + value + " FROM v_oracle WHERE step = 5"));
    };
    EXPECT_NEAR(curveAt(data(), recall.curve, double(from + to) / 2), sql("100 * avg(recall)"), 1e-4);
    EXPECT_NEAR(curveAt(data(), lost.curve, double(from + to) / 2), sql("100 * (1 - avg(mass))"), 1e-4);
    EXPECT_TRUE(curveTooltip(data(), lost.curve, double(from)).contains(QStringLiteral("were not selected")));
    open(recorded("plain.kvtrace", {.decodeSteps = 20}));
    ASSERT_TRUE(waitFor([&] { return note().contains(sentence); })) << note().toStdString();
    EXPECT_FALSE(hasRow(QString::fromLatin1(kOracleRecall)) || hasRow(QString::fromLatin1(kLostMass)));
}

TEST_F(TimelineTracks, CountersArriveWhileTheRunIsRecorded) {
    const RunShape shape{.decodeSteps = 30};
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto record = [&](int steps) {
        generator.recordNext(recorder, steps);
        recorder.flush();
        workspace.traceAdvanced();
    };
    const auto samples = [&](const char* title) -> std::size_t {
        for (const Gauge& gauge : data().gauges)
            if (gauge.info.title == title) return gauge.series.size();
        return 0;
    };
    record(5);
    workspace.addLive({path, 1});
    show();
    ASSERT_TRUE(waitFor([&] { return samples(kResidentKv) == 4; })) << "one for every decode step";
    recorder.take(
        std::vector<CounterSample>{{kPcieToDevice, 0, 1'000'000, 500}, {kPcieToDevice, 1'000'000, 1'000'000, 900}});
    record(10);
    ASSERT_TRUE(waitFor([&] { return samples("PCIe to device") == 2 && samples(kResidentKv) == 14; }));
    EXPECT_TRUE(hasRow(QStringLiteral("PCIe to device")));
    recorder.take(std::vector<CounterSample>{{kPcieToDevice, 2'000'000, 1'000'000, 100}});
    record(3);
    ASSERT_TRUE(waitFor([&] { return samples("PCIe to device") == 3 && samples(kResidentKv) == 17; }));
    recorder.endRun(RunStatus::Finished, {});
    recorder.flush();
    workspace.finishLive({path, 1});
    ASSERT_TRUE(idle());
}

TEST_F(TimelineTracks, TheFilterFadesSpansAndLeavesThemOutOfTheTable) {
    open(measured("run.kvtrace"));
    show();
    const Theme& theme = Theme::light();
    timeline().zoomTo({double(index().at(find("decode", 6)).startNs), double(index().at(find("decode", 6)).endNs())});
    const auto colourOf = [&](SpanRef ref) {
        const QImage image = timeline().grab().toImage();
        const QPoint middle = middleOf(ref);
        return image.pixelColor(middle.x(), timeline().areas().body.top() + scene().layout.rowOf(ref.lane)->y + 2);
    };
    const auto full = [&](SpanRef ref) {
        const QColor seen = colourOf(ref),
                     own = QColor::fromRgb(spanColour(index().components()[std::size_t(index().at(ref).name)], theme));
        // The cursor's band lies over everything with an alpha of 14 / 255.
        return std::abs(seen.red() - own.red()) + std::abs(seen.green() - own.green()) +
                   std::abs(seen.blue() - own.blue()) <
               40;
    };
    const SpanRef ffn = find("ffn", 6), qkv = find("qkv_linear", 6), kernel = find("ffn: linearKernel", 6);
    EXPECT_TRUE(full(ffn) && full(qkv) && full(kernel));
    Filter filter;
    filter.component = QStringLiteral("ffn");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(full(ffn));
    EXPECT_TRUE(full(kernel)) << "a kernel belongs to the stage it was launched for";
    EXPECT_FALSE(full(qkv));
    auto& table = child<QTableWidget>("selfTimes");
    std::set<QString> names;
    for (int line = 0; line < table.rowCount(); ++line) names.insert(table.item(line, 0)->text());
    EXPECT_EQ(names, (std::set<QString>{QStringLiteral("ffn")}));
    EXPECT_TRUE(child<QLabel>("timelineNote").text().contains(QStringLiteral("Filtered: component ffn.")));
    filter = {};
    filter.layers = IndexSet({{1, 1}});
    filter.kvHeads = IndexSet({{0, 0}});
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_FALSE(full(ffn)) << "of layer 0";
    EXPECT_TRUE(child<QLabel>("timelineNote").text().contains(QStringLiteral("Not filtered here: KV heads 0.")));
    double sum = 0;
    for (int line = 0; line < table.rowCount(); ++line) sum += table.item(line, 2)->data(Qt::UserRole).toDouble();
    double wanted = 0; // of the spans themselves: stages and kernels of layer 1 in the window
    const TimeRange window = scene().window;
    for (const SelfTime& each :
         selfTimes(index(), std::int64_t(std::floor(window.from)), std::int64_t(std::ceil(window.to)),
                   SelfTimeBy::Component, [](const TimelineSpan& span) { return span.layer == 1; }))
        wanted += double(each.selfNs);
    EXPECT_EQ(sum, wanted);
    EXPECT_GT(sum, 0);
    filter = {};
    filter.steps = IndexSet({{3, 4}});
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_FALSE(full(ffn)) << "step 6";
    EXPECT_EQ(table.rowCount(), 0);
    filter = {};
    filter.text = QStringLiteral("LINEAR"); // qkv_linear, o_linear and the kernel, whatever the case
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(full(qkv));
    EXPECT_TRUE(full(kernel));
    EXPECT_FALSE(full(ffn));
    workspace.setFilter({});
    ASSERT_TRUE(idle());
    EXPECT_TRUE(full(ffn));
}

/// Where a pixel holds many spans, it shows what the filter keeps as long as there is some.
TEST_F(TimelineTracks, AFilteredComponentShowsInPixelsOfManySpans) {
    open(recorded("long.kvtrace", {.layers = 8, .decodeSteps = 400}));
    show();
    const int lane = find("ffn").lane;
    Filter filter;
    filter.component = QStringLiteral("ffn");
    SpanFilter keeps;
    keeps.set(filter);
    keeps.learn(index());
    int bars = 0;
    index().cover(lane, index().firstNs(), index().endNs(), double(index().endNs() - index().firstNs()) / 50,
                  [&](const SpanBar& bar) {
                      if (bar.count < 100) return;
                      ++bars;
                      double all = 0, kept = 0;
                      for (std::uint32_t i = bar.first; i < bar.first + bar.count; ++i) {
                          const TimelineSpan span = index().at({lane, i});
                          all += double(span.durationNs);
                          if (index().names()[std::size_t(span.name)] == "ffn") kept += double(span.durationNs);
                      }
                      const SpanFilter::Share share = keeps.shareOf(index(), lane, bar);
                      ASSERT_GE(share.name, 0);
                      EXPECT_EQ(index().names()[std::size_t(share.name)], "ffn");
                      // Judged by 30 of 100 and more: the mean over layers is near, not exact.
                      EXPECT_NEAR(share.kept, kept / all, 0.15);
                  });
    EXPECT_GT(bars, 5);
}

TEST_F(TimelineTracks, TheInspectorExplainsTheSameSpan) {
    open(measured("run.kvtrace"));
    show({1200, 1300});
    auto* inspector = new Inspector(workspace, view.get()); // in the same window, as in the main one
    inspector->show();
    ASSERT_TRUE(idle());
    panel().setCurrentIndex(1);
    const SpanRef transfer = find(kToDeviceName, 3);
    timeline().reveal(transfer);
    click(middleOf(transfer));
    ASSERT_TRUE(idle());
    const auto said = [&](const char* name) { return inspector->spanFacts()->value(QString::fromLatin1(name)); };
    EXPECT_EQ(said("Span"), QString::fromLatin1(kToDeviceName));
    for (const char* name : {"Span", "Track", "Belongs to", "Begins", "Lasts", "Bytes", "Bandwidth", "Waited", "Arrows",
                             "Before", "After"}) {
        EXPECT_FALSE(said(name).isEmpty()) << name;
        EXPECT_EQ(said(name), fact(QString::fromLatin1(name))) << "one source of facts";
    }
    const TimelineSpan span = index().at(transfer);
    const TraceReader reader(workspace.current()->key.path.toStdString());
    const double bytes = double(reader.layers(1, span.step).at(std::size_t(span.layer)).h2dBytes);
    EXPECT_TRUE(said("Bandwidth").contains(QStringLiteral("%1 GB/s").arg(bytes / double(span.durationNs), 0, 'f', 2)))
        << said("Bandwidth").toStdString();
    ASSERT_GT(workspace.current()->row.linkGbps, 0);
    EXPECT_TRUE(said("Bandwidth").contains(QStringLiteral("of the link's")));
    EXPECT_EQ(panel().currentIndex(), 1) << "the panel keeps its table: the span is explained elsewhere";
    EXPECT_TRUE(tooltipOf(data(), transfer).contains(QStringLiteral("<b>to device</b>")));
    click(emptySpot());
    EXPECT_TRUE(said("Span").isEmpty());
    inspector->hide();
    click(middleOf(transfer));
    EXPECT_EQ(panel().currentIndex(), 0) << "nobody else shows it";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
