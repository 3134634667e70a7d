// The Waterfall view: it says what the profiler says, bars are chosen by mouse and keys, and lead to the timeline.
#include "profiler/waterfall/waterfall.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h" // before any Qt header: its member `slots` is a macro there
#include "tests/support/places.h"
#include "tests/ui/view_fixture.h"
#include "tests/ui/window_fixture.h"

#include "ui/timeline/timeline_canvas.h"
#include "ui/views/waterfall/waterfall_plottable.h"

#include <QLabel>
#include <QPushButton>
#include <QRegularExpression>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

QString samplePath() { return QString::fromStdString(test::source("resources/samples/h200-nosa-8b.kvtrace")); }

class WaterfallViewTest : public ViewTest {
protected:
    const std::vector<WaterfallPlottable::Row>& rows() {
        for (int i = 0; i < canvas().plottableCount(); ++i)
            if (auto* bars = qobject_cast<WaterfallPlottable*>(canvas().plottable(i))) return bars->rows();
        throw std::runtime_error("no waterfall");
    }
    QString chosen() { return child<QLabel>("chosenLoss").text(); }
};

TEST_F(WaterfallViewTest, TeachesWithoutARun) {
    show("waterfall");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No run is open")));
    EXPECT_TRUE(view->exportCsv().isEmpty());
}

TEST_F(WaterfallViewTest, HasARowForEveryLossBetweenPredictedAndMeasured) {
    open(samplePath());
    show("waterfall");
    const Waterfall waterfall = waterfallOf(TraceReader(samplePath().toStdString()), 1, GpuTable());
    ASSERT_EQ(plot().emptyText(), QString());
    EXPECT_TRUE(child<QLabel>("headline").text().startsWith(QStringLiteral("54 % of the step is ffn")));
    ASSERT_EQ(rows().size(), waterfall.bars.size() + 2);
    EXPECT_NEAR(rows().front().end(), *waterfall.predictedNs, 1);
    double at = *waterfall.predictedNs;
    for (std::size_t i = 0; i < waterfall.bars.size(); ++i) {
        EXPECT_NEAR(rows()[i + 1].from, at, 1) << "each bar begins where the one above it ended";
        at = rows()[i + 1].end();
    }
    EXPECT_NEAR(at, waterfall.measuredNs(), 1);
    EXPECT_NEAR(rows().back().end(), waterfall.measuredNs(), 1);
    const QString csv = view->exportCsv();
    EXPECT_TRUE(
        csv.startsWith(QStringLiteral("id,kind,measured_ns,floor_ns,loss_ns,step,layer,start_ns,duration_ns\n")));
    EXPECT_EQ(csv.count(QLatin1Char('\n')), int(waterfall.bars.size()) + 2);
}

TEST_F(WaterfallViewTest, AClickedBarSaysWhatItIsAndMovesTheCursorThere) {
    open(samplePath());
    show("waterfall");
    const Waterfall waterfall = waterfallOf(TraceReader(samplePath().toStdString()), 1, GpuTable());
    int offloading = -1;
    for (std::size_t i = 0; i < waterfall.bars.size(); ++i)
        if (waterfall.bars[i].id == "offloading") offloading = int(i);
    ASSERT_GE(offloading, 0);
    const LossPlace& place = waterfall.bars[std::size_t(offloading)].most;
    click(2e6, offloading + 1);
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("offloading: "))) << chosen().toStdString();
    EXPECT_TRUE(chosen().contains(QStringLiteral("tokens/s")));
    EXPECT_EQ(workspace.cursor().step, place.step);
    EXPECT_EQ(workspace.cursor().layer, place.layer);
    canvas().setFocus();
    QTest::keyClick(&canvas(), Qt::Key_Home);
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("ffn: ")));
    QTest::keyClick(&canvas(), Qt::Key_Down);
    EXPECT_FALSE(chosen().startsWith(QStringLiteral("ffn: ")));
    QTest::keyClick(&canvas(), Qt::Key_End);
    EXPECT_TRUE(chosen().startsWith(QStringLiteral("unexplained: ")));
    EXPECT_FALSE(child<QPushButton>("filterLoss").isVisible()) << "no component";
}

/// "Most of it in one place" was said of the longest of 736 places, which had 0.2 % of it.
TEST_F(WaterfallViewTest, SaysWhereABarTookLongest) {
    open(samplePath());
    show("waterfall");
    const QString text = child<QLabel>("chosenLoss").text();
    const auto longest =
        test::sql(samplePath().toStdString(), "SELECT max(ffn_ns), (id >> 10) & 0x1FFFFFF, id & 0x3FF FROM layer_step"
                                              " WHERE (id >> 10) & 0x1FFFFFF > 1")
            .rows.at(0);
    EXPECT_TRUE(
        text.contains(QStringLiteral("It took longest in step %1, layer %2: %3.")
                          .arg(QString::fromStdString(longest[1]), QString::fromStdString(longest[2]),
                               QStringLiteral("%1 µs").arg(QString::number(std::stod(longest[0]) / 1e3, 'g', 3)))))
        << text.toStdString();
}

TEST_F(WaterfallViewTest, OfAServerSaysWhereItsTimesAreShown) {
    synthetic::recordServing(folder / "served.kvtrace");
    open(file("served.kvtrace"));
    show("waterfall");
    const QString text = plot().emptyText();
    EXPECT_TRUE(text.contains(QStringLiteral("The view Serving shows"))) << text.toStdString();
    EXPECT_FALSE(text.contains(QStringLiteral(".kvtrace"))) << text.toStdString();
}

TEST_F(WaterfallViewTest, FiltersToAComponentAndBack) {
    open(samplePath());
    show("waterfall");
    auto& only = child<QPushButton>("filterLoss");
    ASSERT_TRUE(only.isVisible());
    QTest::mouseClick(&only, Qt::LeftButton);
    EXPECT_EQ(workspace.filter().component, QStringLiteral("ffn"));
    EXPECT_TRUE(idle());
    QTest::mouseClick(&only, Qt::LeftButton);
    EXPECT_TRUE(workspace.filter().empty());
}

TEST_F(WaterfallViewTest, OfAModelledRunHasNoRoofAndSaysWhy) {
    open(recorded("run.kvtrace", {}));
    show("waterfall");
    ASSERT_EQ(plot().emptyText(), QString());
    EXPECT_TRUE(child<QLabel>("headlineDetail").text().contains(QStringLiteral("There is no roof")));
    EXPECT_EQ(rows().front().from, 0);
    EXPECT_EQ(rows().front().parts.size(), 1u) << "no predicted step";
    EXPECT_TRUE(view->exportImage(file("waterfall.png"), {800, 500}));
}

/// The sentence above said "ffn 1.42 ms" and its bar "1420 µs"; shares had up to four digits behind the point.
TEST_F(WaterfallViewTest, BarsHaveTheUnitsOfTheSentenceAboveThem) {
    open(recorded("run.kvtrace", {}));
    show("waterfall");
    ASSERT_EQ(plot().emptyText(), QString());
    const QRegularExpression form(QStringLiteral("^\u2212?([\\d.]+) (ns|\u00b5s|ms|s)  \u00b7  \u2212?\\d+\\.\\d %$"));
    int bars = 0;
    for (const WaterfallPlottable::Row& row : rows()) {
        if (!row.value.contains(QChar(0xb7))) continue; // the predicted and the measured step
        const QRegularExpressionMatch match = form.match(row.value);
        ASSERT_TRUE(match.hasMatch()) << row.value.toStdString();
        EXPECT_LT(match.captured(1).toDouble(), 1000) << row.value.toStdString();
        ++bars;
    }
    EXPECT_GT(bars, 2);
    EXPECT_TRUE(rows().back().value.endsWith(QStringLiteral(" ms, measured"))) << rows().back().value.toStdString();
}

/// Three bars of the sample with the shape of 8B save a microsecond or two: "−0.0 %" stood beside them.
TEST_F(WaterfallViewTest, AShareThatRoundsToNothingHasNoMinus) {
    open(QString::fromStdString(test::source("resources/samples/h200-nosa-8b.kvtrace")));
    show("waterfall");
    int saved = 0;
    for (const WaterfallPlottable::Row& row : rows()) {
        saved += row.value.startsWith(QChar(0x2212)) ? 1 : 0;
        EXPECT_FALSE(row.value.contains(QStringLiteral("\u22120.0 %"))) << row.value.toStdString();
    }
    EXPECT_GT(saved, 0);
}

TEST_F(WaterfallViewTest, SaysThatAPrefillHasNone) {
    open(recorded("prefill.kvtrace", {.decodeSteps = 0}));
    show("waterfall");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("no waterfall"))) << plot().emptyText().toStdString();
}

class WaterfallInWindow : public WindowTest {};

TEST_F(WaterfallInWindow, ABarLeadsToItsSpansInTheTimeline) {
    const auto window = makeWindow();
    window->openFiles({samplePath()});
    ASSERT_TRUE(until([&] { return window->workspace().current() && window->workspace().idle(); }));
    window->showView(QStringLiteral("waterfall"));
    settle(*window);
    auto* button = window->currentView()->findChild<QPushButton*>(QStringLiteral("showLoss"));
    ASSERT_NE(button, nullptr);
    ASSERT_TRUE(until([&] { return button->isVisible(); }));
    QTest::mouseClick(button, Qt::LeftButton);
    const Waterfall waterfall = waterfallOf(TraceReader(samplePath().toStdString()), 1, GpuTable());
    const LossPlace& place = waterfall.bars.front().most;
    auto* canvas = window->currentView()->findChild<TimelineCanvas*>();
    ASSERT_NE(canvas, nullptr) << "the timeline came to the front";
    EXPECT_TRUE(until([&] {
        const TimeRange shown = canvas->scene().window;
        return shown.from < double(place.startNs) && shown.to > double(place.startNs + place.durationNs) &&
               shown.size() < 4 * double(place.durationNs);
    }));
    EXPECT_EQ(window->workspace().cursor().step, place.step);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
