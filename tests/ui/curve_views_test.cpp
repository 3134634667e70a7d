// Transfers, breakdown, compare, and the picture writer that serves all views.
#include "tests/ui/view_fixture.h"

#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_serving.h"

#include "base/error.h"
#include "profiler/merge/merge.h"
#include "profiler/read/filtered.h"
#include "profiler/read/step_kind.h"
#include "ui/frame/units.h"
#include "ui/output/render.h"
#include "ui/plots/curve_plottable.h"
#include "ui/plots/stack_plottable.h"
#include "ui/views/key_numbers.h"

#include <QComboBox>
#include <QFile>
#include <QLabel>
#include <QPolygonF>
#include <QRegularExpression>
#include <QTableWidget>
#include <QToolTip>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string_view>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class TransfersViewTest : public ViewTest {};
class BreakdownViewTest : public ViewTest {};
class CompareViewTest : public ViewTest {};
class RenderTest : public ViewTest {};

bool isDrawn(const CurvePlottable& curve) { return curve.within({-1, 1e6}).count > 0; }

TEST_F(TransfersViewTest, PlotsHitRateMissesBytesAndExposedTimeOfEveryDecodeStep) {
    open(recorded("a.kvtrace", {}));
    show("transfers");
    TraceReader reader(workspace.current()->key.path.toStdString());
    const auto steps = reader.steps(1);
    ASSERT_EQ(canvas().panels().size(), 4u);
    for (std::size_t panel = 0; panel < 4; ++panel) {
        const CurvePlottable* curve = nullptr;
        for (QCPAbstractPlottable* each : canvas().panels()[panel]->plottables())
            if (auto* candidate = qobject_cast<CurvePlottable*>(each); candidate && isDrawn(*candidate))
                curve = candidate;
        ASSERT_TRUE(curve);
        ASSERT_EQ(curve->within({-1, 1000}).count, 20) << "the prefill is left out";
        EXPECT_TRUE(std::isnan(curve->value(0)));
        const StepRow& row = steps[7];
        const double expected[] = {100.0 * double(row.hits) / double(row.hits + row.misses), double(row.misses),
                                   double(row.h2dBytes), double(row.exposedNs)};
        EXPECT_FLOAT_EQ(float(curve->value(7)), float(expected[panel]));
    }
}

TEST_F(TransfersViewTest, SaysThatTimesAreModelled) {
    open(recorded("a.kvtrace", {}));
    show("transfers");
    ASSERT_TRUE(view->exportImage(file("t.svg"), {900, 700}));
    QFile svg(file("t.svg"));
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    EXPECT_TRUE(svg.readAll().contains("Exposed time, modelled ("));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("modelled")));
    move(pixel(5, 50));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("modelled"))) << QToolTip::text().toStdString();
}

TEST_F(TransfersViewTest, OverlaysTheComparedRunInItsOwnColour) {
    open(recorded("b.kvtrace", {.decodeSteps = 35, .seed = 5}));
    const RunKey b = workspace.current()->key;
    open(recorded("a.kvtrace", {}));
    show("transfers");
    EXPECT_EQ(canvas().fullX().upper, 20.5);
    workspace.setCompare(b);
    ASSERT_TRUE(idle());
    EXPECT_EQ(canvas().fullX().upper, 35.5);
    int drawn = 0;
    for (QCPAbstractPlottable* each : canvas().panels()[1]->plottables())
        if (auto* curve = qobject_cast<CurvePlottable*>(each); curve && isDrawn(*curve)) ++drawn;
    EXPECT_EQ(drawn, 2);
    workspace.setCompare(std::nullopt);
    ASSERT_TRUE(idle());
    EXPECT_EQ(canvas().fullX().upper, 20.5);
}

TEST_F(TransfersViewTest, FitsTheValueAxisToWhatIsVisible) {
    open(recorded("a.kvtrace", {.decodeSteps = 100}));
    show("transfers");
    const double whole = canvas().panels()[1]->axis(QCPAxis::atLeft)->range().upper;
    canvas().zoomTo({60.5, 64.5}); // steps that miss less than the first one
    EXPECT_LT(canvas().panels()[1]->axis(QCPAxis::atLeft)->range().upper, whole);
}

TEST_F(TransfersViewTest, PreviewsALongRunAndThenShowsEveryStep) {
    const int steps = 2 * kTileSteps + 300;
    open(recorded("a.kvtrace", {.layers = 2, .kvHeads = 1, .decodeSteps = steps - 1}, RecordLevel::Counters));
    show("transfers");
    const auto rows = TraceReader(workspace.current()->key.path.toStdString()).steps(1);
    ASSERT_EQ(rows.size(), std::size_t(steps));
    auto* misses = qobject_cast<CurvePlottable*>(canvas().panels()[1]->plottables().value(1));
    ASSERT_TRUE(misses);
    for (const StepRow& row : rows)
        if (row.phase == Phase::Decode) {
            ASSERT_FLOAT_EQ(float(misses->value(row.step)), float(row.misses)) << row.step;
        }
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("not read yet")));
}

TEST(CurvePlottable, KeepsTheOneBadStepOfManyInItsPixel) {
    StepPyramid data;
    data.reset(2);
    std::vector<float> values(2 * 20'000, 5.f);
    values[2 * 12'345 + 1] = 80;
    for (std::size_t step = 3000; step < 3200; ++step) values[2 * step + 1] = std::nanf("");
    data.append(values);
    QCustomPlot plot;
    plot.resize(500, 300);
    auto* curve = new CurvePlottable(plot.xAxis, plot.yAxis, data, 1);
    curve->setPen(QPen(Qt::black, 1));
    plot.xAxis->setRange(-0.5, 19'999.5);
    plot.yAxis->setRange(0, 100);
    plot.replot();
    const QImage image = plot.toPixmap(500, 300).toImage();
    const auto black = [&](double step, double value) {
        const QPoint at(int(plot.xAxis->coordToPixel(step)), int(plot.yAxis->coordToPixel(value)));
        for (int dy = -1; dy <= 1; ++dy) // the axis' rounding
            if (image.pixelColor(at + QPoint(0, dy)).lightness() < 60) return true;
        return false;
    };
    EXPECT_TRUE(black(12'345, 60)) << "the line goes up to the one step";
    EXPECT_FALSE(black(12'345, 90));
    EXPECT_FALSE(black(9'000, 60));
    EXPECT_TRUE(black(9'000, 5));
    EXPECT_FALSE(black(3'100, 5)) << "undefined steps leave a gap";
    EXPECT_EQ(curve->within({12'000, 13'000}).max, 80);
    EXPECT_EQ(curve->within({3'000, 3'199}).count, 0);
}

TEST_F(TransfersViewTest, AnSvgOfCurvesEndsAtThePlot) {
    open(recorded("a.kvtrace", {.decodeSteps = 80}));
    show("transfers");
    canvas().zoomTo({20, 40});
    for (const QCPAxisRect* panel : canvas().panels()) {
        QCPAxis* values = panel->axis(QCPAxis::atLeft);
        const double middle = values->range().center(), reach = values->range().size() / 8;
        values->setRange(middle - reach, middle + reach);
    }
    std::vector<QRectF> plots; // as the picture lays them out, which comes first
    QObject::connect(&canvas(), &QCustomPlot::afterLayout, &canvas(), [&] {
        if (plots.empty())
            for (const QCPAxisRect* panel : canvas().panels()) plots.emplace_back(panel->rect());
    });
    const QString path = file("zoomed.svg");
    ASSERT_TRUE(view->exportImage(path, {900, 600}));
    ASSERT_FALSE(plots.empty());
    QFile svg(path);
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    const QString text = QString::fromUtf8(svg.readAll());
    static const QRegularExpression lines(QStringLiteral("<polyline[^>]* points=\"([^\"]*)\""));
    int points = 0;
    for (auto line = lines.globalMatch(text); line.hasNext();) {
        const QStringList corners = line.next().captured(1).split(QLatin1Char(' '), Qt::SkipEmptyParts);
        if (corners.size() < 3) continue; // of an axis
        QPolygonF curve;
        for (const QString& corner : corners)
            curve << QPointF(corner.section(QLatin1Char(','), 0, 0).toDouble(),
                             corner.section(QLatin1Char(','), 1, 1).toDouble());
        points += int(curve.size());
        const QRectF reach = curve.boundingRect();
        const auto holds = [&](const QRectF& plot) { return plot.adjusted(-1, -1, 1, 1).contains(reach); };
        ASSERT_TRUE(std::any_of(plots.begin(), plots.end(), holds))
            << reach.left() << " to " << reach.right() << ", " << reach.top() << " to " << reach.bottom();
    }
    EXPECT_GT(points, 0) << "something of a curve is in sight";
}

TEST_F(BreakdownViewTest, StacksTheStagesOfEveryDecodeStep) {
    open(recorded("a.kvtrace", {}));
    show("breakdown");
    TraceReader reader(workspace.current()->key.path.toStdString());
    const BreakdownStep step = reader.breakdownSteps(1, 6, 6).at(0);
    double low = 0;
    for (std::size_t i = 0; i < kStageCount; ++i) {
        const double high = low + double(step.stageNs[i]);
        if (std::abs(pixel(6, low).y() - pixel(6, high).y()) > 4) {
            EXPECT_EQ(colourAt(6, (low + high) / 2), Theme::light().component[i]) << kStageNames[i];
        }
        low = high;
    }
    EXPECT_EQ(canvas().fullX().lower, 0.5) << "the prefill is another phase";
}

TEST_F(BreakdownViewTest, KeepsThePrefillApart) {
    open(recorded("a.kvtrace", {}));
    show("breakdown");
    child<QComboBox>("phase").setCurrentIndex(1);
    ASSERT_TRUE(idle());
    EXPECT_EQ(canvas().fullX().lower, -0.5);
    EXPECT_EQ(canvas().fullX().upper, 0.5);
    EXPECT_EQ(view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts).size(), 2);
}

TEST_F(BreakdownViewTest, SharesAddUpToAHundredPercent) {
    open(recorded("a.kvtrace", {}));
    show("breakdown");
    child<QComboBox>("unit").setCurrentIndex(1);
    canvas().replot();
    EXPECT_EQ(canvas().panels()[0]->axis(QCPAxis::atLeft)->range().upper, 100);
    EXPECT_NE(colourAt(6, 99.5), Theme::light().plotBackground);
    EXPECT_TRUE(canvas().panels()[0]->axis(QCPAxis::atLeft)->label().contains(QLatin1Char('%')));
}

TEST_F(BreakdownViewTest, ShowsTheMeanPerLayerAndInTotal) {
    open(recorded("a.kvtrace", {}));
    show("breakdown");
    TraceReader reader(workspace.current()->key.path.toStdString());
    std::map<int, double> layers;
    double total = 0, wall = 0;
    std::vector<int> warm; // decode steps without the first one, which is cold
    for (const StepRow& row : reader.steps(1, 2)) warm.push_back(row.step), wall += double(row.durationNs);
    for (const BreakdownRow& row : breakdownOf(reader, 1, {}, warm)) {
        total += double(row.totalNs);
        if (row.layer >= 0) layers[row.layer] += double(row.totalNs);
    }
    child<QComboBox>("mode").setCurrentIndex(1);
    ASSERT_TRUE(idle());
    auto* bars = qobject_cast<BarStackPlottable*>(canvas().panels()[0]->plottables().value(0));
    ASSERT_TRUE(bars);
    ASSERT_EQ(bars->bars().size(), 4u);
    for (std::size_t layer = 0; layer < 4; ++layer)
        EXPECT_NEAR(bars->bars()[layer].total(), layers[int(layer)] / 19, 1);
    click(2, bars->bars()[2].total() / 2);
    EXPECT_EQ(workspace.cursor().layer, 2);

    child<QComboBox>("mode").setCurrentIndex(2);
    ASSERT_TRUE(idle());
    bars = qobject_cast<BarStackPlottable*>(canvas().panels()[0]->plottables().value(0));
    ASSERT_EQ(bars->bars().size(), 1u);
    EXPECT_NEAR(bars->bars()[0].total(), total / 19, 1);
    EXPECT_NEAR(bars->bars()[0].total(), wall / 19, wall / 19 * 0.01) << "components and other are the wall time";
    canvas().replot();
    EXPECT_TRUE(plot().noteText().contains("Mean of 19 decode steps, 1 cold step left out"))
        << plot().noteText().toStdString();
}

TEST_F(BreakdownViewTest, CountsColdStepsInMeansWhereTheSwitchSaysSo) {
    open(recorded("a.kvtrace", {}));
    setColdSteps(ColdSteps::Counted);
    show("breakdown");
    child<QComboBox>("mode").setCurrentIndex(2);
    EXPECT_TRUE(idle());
    canvas().replot();
    const QString note = plot().noteText();
    setColdSteps(ColdSteps::LeftOut);
    const TraceReader reader(workspace.current()->key.path.toStdString());
    double wall = 0;
    for (const StepRow& row : reader.steps(1, 1)) wall += double(row.durationNs);
    const auto* bars = qobject_cast<BarStackPlottable*>(canvas().panels()[0]->plottables().value(0));
    ASSERT_TRUE(bars);
    EXPECT_NEAR(bars->bars()[0].total(), wall / 20, wall / 20 * 0.01);
    EXPECT_TRUE(note.contains("Mean of 20 decode steps, cold ones too")) << note.toStdString();
}

TEST_F(BreakdownViewTest, CountsColdStepsWhereAFilterLeavesNoOthers) {
    open(recorded("a.kvtrace", {}));
    Filter filter;
    filter.steps = *IndexSet::fromText(QStringLiteral("1"));
    workspace.setFilter(filter);
    show("breakdown");
    child<QComboBox>("mode").setCurrentIndex(2);
    ASSERT_TRUE(idle());
    const TraceReader reader(workspace.current()->key.path.toStdString());
    const auto* bars = qobject_cast<BarStackPlottable*>(canvas().panels()[0]->plottables().value(0));
    ASSERT_TRUE(bars);
    const double first = double(reader.steps(1, 1, 1).at(0).durationNs);
    EXPECT_NEAR(bars->bars()[0].total(), first, first * 0.01);
    canvas().replot();
    EXPECT_TRUE(plot().noteText().contains("Of 1 decode step.")) << plot().noteText().toStdString();
}

TEST_F(BreakdownViewTest, PutsTwoRunsSideBySide) {
    open(recorded("b.kvtrace", {.seed = 3}));
    const RunKey b = workspace.current()->key;
    open(recorded("a.kvtrace", {}));
    workspace.setCompare(b);
    show("breakdown");
    EXPECT_EQ(canvas().panels().size(), 2u);
    child<QComboBox>("mode").setCurrentIndex(1);
    ASSERT_TRUE(idle());
    auto* bars = qobject_cast<BarStackPlottable*>(canvas().panels()[0]->plottables().value(0));
    ASSERT_EQ(bars->bars().size(), 8u);
    EXPECT_LT(bars->bars()[0].centre + bars->bars()[0].width / 2,
              bars->bars()[1].centre - bars->bars()[1].width / 2 + 0.05);
    EXPECT_NE(bars->bars()[0].foot, bars->bars()[1].foot);
}

TEST_F(CompareViewTest, ExplainsHowToChooseASecondRun) {
    open(recorded("a.kvtrace", {}));
    show("compare");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Choose a second run")));
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("nosa on synthetic")));
}

TEST_F(CompareViewTest, ListsKeyNumbersOfBothRunsWithTheirDifference) {
    open(recorded("b.kvtrace", {.decodeSteps = 35, .seed = 5, .method = "quest"}));
    const RunKey b = workspace.current()->key;
    open(recorded("a.kvtrace", {}));
    workspace.setCompare(b);
    show("compare");
    auto& table = child<QTableWidget>("keyNumbers");
    ASSERT_TRUE(table.isVisible());
    TraceReader reader(workspace.current()->key.path.toStdString());
    const RunSummary summary = summarize(reader, 1);
    QMap<QString, QStringList> rows;
    for (int row = 0; row < table.rowCount(); ++row)
        rows[table.item(row, 0)->text()] = {table.item(row, 1)->text(), table.item(row, 2)->text(),
                                            table.item(row, 3)->text()};
    EXPECT_EQ(rows[QStringLiteral("Decode steps")], (QStringList{"20 steps", "35 steps", "+15 steps (+75 %)"}));
    EXPECT_EQ(rows[QStringLiteral("Hit rate")][0], formatValue(Unit::Percent, 100 * summary.hitRate));
    EXPECT_EQ(rows[QStringLiteral("Locality, mean")][0], formatValue(Unit::Fraction, summary.localityMean));
    EXPECT_TRUE(rows.contains(QStringLiteral("Exposed time per step (modelled)")));
    EXPECT_TRUE(table.horizontalHeaderItem(2)->text().contains(QStringLiteral("quest on synthetic")));
    EXPECT_TRUE(view->exportCsv().contains(QStringLiteral("\"Decode steps\",steps,20,35,15")));
}

TEST_F(CompareViewTest, SaysTheVerdictAndTheComponentsIntervals) {
    open(recorded("b.kvtrace", {.decodeSteps = 80, .seed = 5, .method = "quest"}));
    const RunKey b = workspace.current()->key;
    open(recorded("a.kvtrace", {.decodeSteps = 80}));
    workspace.setCompare(b);
    show("compare");
    auto& verdict = child<QLabel>("verdict");
    ASSERT_TRUE(waitFor([&] { return verdict.isVisible(); }));
    const RunSample left = loadRunSample(TraceReader(workspace.current()->key.path.toStdString()), 1),
                    right = loadRunSample(TraceReader(b.path.toStdString()), 1);
    const Comparison expected = compareRuns(std::span(&left, 1), std::span(&right, 1));
    EXPECT_EQ(verdict.text(), QString::fromStdString(expected.sentence) + QStringLiteral(". ") +
                                  factsText(left, right, QStringLiteral("B")));
    EXPECT_TRUE(verdict.toolTip().contains(QStringLiteral("one run a side")));
    auto& table = child<QTableWidget>("keyNumbers");
    const std::vector<KeyNumber> components = componentNumbers(expected);
    ASSERT_GT(table.rowCount(), int(components.size()));
    const int first = table.rowCount() - int(components.size());
    for (std::size_t i = 0; i < components.size(); ++i) {
        EXPECT_EQ(table.item(first + int(i), 0)->text(), components[i].title);
        EXPECT_EQ(table.item(first + int(i), 3)->text(), components[i].difference());
    }
    view->resize(640, 640); // the column of the differences stays in sight, and its tooltips have the intervals
    QCoreApplication::processEvents();
    for (std::size_t i = 0; i < components.size(); ++i) {
        const QTableWidgetItem* cell = table.item(first + int(i), 3);
        EXPECT_EQ(cell->text(), components[i].difference(false));
        if (cell->text() != components[i].difference()) {
            EXPECT_TRUE(cell->toolTip().contains(components[i].difference().toHtmlEscaped()))
                << cell->toolTip().toStdString();
        }
    }
    EXPECT_EQ(components[0].title, QStringLiteral("Step time against A's, median")) << "the verdict's own number";
    EXPECT_NEAR(components[0].b, 100 * expected.ratio.value, 1e-9);
    EXPECT_TRUE(view->exportCsv().startsWith(QStringLiteral("quantity,unit,a,b,difference,low,high,run\n")));

    open(recorded("c.kvtrace", {.kvHeads = 1, .decodeSteps = 80}));
    ASSERT_TRUE(idle());
    ASSERT_TRUE(waitFor([&] { return verdict.text().startsWith(QStringLiteral("Not comparable")); }));
    EXPECT_TRUE(verdict.text().contains(QStringLiteral("1 KV heads")));
}

TEST(CompareFacts, SayBytesAndAnswerBesideTheTime) {
    RunSample a, b;
    for (RunSample* sample : {&a, &b}) {
        sample->summary.tokensPerSecond = 100; // a token a step
        sample->summary.stepMs = 10;
    }
    a.summary.h2dBytesPerStep = 65536, b.summary.h2dBytesPerStep = 98304;
    a.answer = "79930, correct", b.answer = "48213 instead of 79930";
    const QString letter = QStringLiteral("C");
    EXPECT_EQ(factsText(a, b, letter), QStringLiteral("C fetches 96 KiB per token from the host, A 64 KiB (+50 %). C "
                                                      "answers 48213 instead of 79930; A 79930, correct."));
    b = a;
    EXPECT_EQ(factsText(a, b, letter),
              QStringLiteral("Both fetch 64 KiB per token from the host. Both answer 79930, correct."));
    b.summary.h2dBytesPerStep = 0, b.answer.clear();
    EXPECT_EQ(factsText(a, b, letter),
              QStringLiteral("C fetches nothing from the host, A 64 KiB per token. A answers 79930, correct."));
    EXPECT_EQ(factsText(b, a, letter),
              QStringLiteral("C fetches 64 KiB per token from the host, A nothing. C answers 79930, correct."));
    EXPECT_EQ(factsText(b, b, letter), QStringLiteral("Neither fetches blocks from the host."));
    b.summary.h2dBytesPerStep = std::nan("");
    EXPECT_EQ(factsText(b, b, letter), QString());
}

TEST(KeyNumber, JudgesByItsIntervalWhereItHasOne) {
    KeyNumber time{"Time", "", "ns", Unit::Nanoseconds, 2e7, 3e7, -1, -1e5, 2e7};
    EXPECT_EQ(time.verdict(), 0);
    EXPECT_EQ(time.difference(), QStringLiteral("cannot tell: −100 µs to +20 ms"));
    EXPECT_EQ(time.difference(false), QStringLiteral("cannot tell"));
    time.low = 5e6;
    EXPECT_EQ(time.verdict(), -1);
    EXPECT_EQ(time.difference(), QStringLiteral("+10 ms (+50 %), from +5 ms to +20 ms"));
    EXPECT_EQ(time.difference(false), QStringLiteral("+10 ms (+50 %)"));
    time.low = -4e5, time.high = 5e5; // 2.5 % of 20 ms
    EXPECT_EQ(time.verdict(), 0);
    EXPECT_EQ(time.difference(), QStringLiteral("no difference: −400 µs to +500 µs"));
    KeyNumber speed{"Speed", "", "tokens/s", Unit::Count, 100, 200, 1};
    EXPECT_EQ(speed.verdict(), 1);
    speed.varies = true;
    EXPECT_EQ(speed.verdict(), 0) << "a number of one recording, without an interval, names no winner";
}

TEST(KeyNumber, JudgesByTheDirectionThatIsBetter) {
    KeyNumber time{"Time", "", "ns", Unit::Nanoseconds, 2000, 1000, -1};
    EXPECT_EQ(time.verdict(), 1);
    EXPECT_EQ(time.difference(),
              QStringLiteral("−1,000 ns (−50 %)").replace(QStringLiteral("1,000"), QStringLiteral("1000")));
    time.b = std::nan("");
    EXPECT_EQ(time.verdict(), 0);
    EXPECT_EQ(time.difference(), QStringLiteral("–"));
}

TEST(Units, AreWrittenAsPeopleReadThem) {
    EXPECT_EQ(formatValue(Unit::Bytes, 512), QStringLiteral("512 B"));
    EXPECT_EQ(formatValue(Unit::Bytes, 8192), QStringLiteral("8 KiB"));
    EXPECT_EQ(formatValue(Unit::Bytes, 3.5 * 1048576 * 2), QStringLiteral("7 MiB"));
    EXPECT_EQ(formatValue(Unit::Nanoseconds, 412'345), QStringLiteral("412 µs"));
    EXPECT_EQ(formatValue(Unit::Nanoseconds, 41'234'500), QStringLiteral("41.2 ms"));
    EXPECT_EQ(formatValue(Unit::Percent, 93.14), QStringLiteral("93.1 %"));
    EXPECT_EQ(formatValue(Unit::Count, 1234567), QStringLiteral("1,234,567"));
    EXPECT_EQ(formatValue(Unit::Fraction, 0.98765), QStringLiteral("0.988"));
    EXPECT_EQ(formatValue(Unit::Fraction, std::nan("")), QStringLiteral("undefined"));
    EXPECT_EQ(formatCount(-1234), QStringLiteral("-1,234"));
    EXPECT_EQ(unitFromName(QStringLiteral("µs")).factor, 1000);
}

TEST_F(RenderTest, WritesEveryViewInEveryFormatAndTheme) {
    const QString trace = recorded("a.kvtrace", {}), other = recorded("b.kvtrace", {.seed = 4});
    synthetic::recordDenoising(folder / "blocks.kvtrace", {});
    synthetic::recordServing(folder / "served.kvtrace", 12, true, RunStatus::Finished, true, synthetic::kServerFacts);
    std::vector<std::string> ranks;
    for (const char* rank : {"0", "1"}) {
        ranks.push_back(recorded(std::string("rank") + rank + ".kvtrace", {}).toStdString());
        test::sql(ranks.back(),
                  std::string("INSERT OR REPLACE INTO run_meta VALUES (1, 'group', 'job'), (1, 'world', '2'), "
                              "(1, 'rank', '") +
                      rank + "')",
                  SQLITE_OPEN_READWRITE);
    }
    mergeTraces(ranks, (folder / "ranks.kvtrace").string(), false);
    const std::set<std::string_view> servingViews{"serving", "rates", "slo", "capacity"};
    for (const ViewEntry& entry : views()) {
        for (const char* suffix : {"png", "svg", "pdf"}) {
            RenderRequest request;
            request.trace = std::string_view(entry.id) == "denoising" ? file("blocks.kvtrace")
                            : servingViews.contains(entry.id)         ? file("served.kvtrace")
                            : std::string_view(entry.id) == "ranks"   ? file("ranks.kvtrace")
                                                                      : trace;
            request.compareTrace = other;
            request.view = QString::fromLatin1(entry.id);
            request.output = file(std::string(entry.id) + "." + suffix);
            request.theme = QStringLiteral("dark");
            request.size = {800, 500};
            ASSERT_NO_THROW(renderView(request)) << entry.id << " " << suffix;
            QFile picture(request.output);
            ASSERT_TRUE(picture.exists());
            EXPECT_GT(picture.size(), 5000) << entry.id << " " << suffix;
        }
        const QImage image(file(std::string(entry.id) + ".png"));
        EXPECT_EQ(image.size(), QSize(800, 500));
        EXPECT_EQ(image.pixelColor(2, 2), Theme::dark().plotBackground);
    }
    EXPECT_EQ(Theme::current().id, QStringLiteral("light")) << "the program keeps its own theme";
}

TEST_F(RenderTest, RefusesWhatItCannotDoInOneSentence) {
    const QString trace = recorded("a.kvtrace", {});
    const auto messageOf = [&](RenderRequest request) -> std::string {
        if (request.trace.isEmpty()) request.trace = trace;
        if (request.view.isEmpty()) request.view = QStringLiteral("locality");
        if (request.output.isEmpty()) request.output = file("x.png");
        try {
            renderView(request);
        } catch (const Error& error) {
            return oneLine(error);
        }
        return "no error";
    };
    EXPECT_NE(messageOf({.view = "sandwich"}).find("sandwich; choose one of locality"), std::string::npos)
        << messageOf({.view = "sandwich"});
    EXPECT_NE(messageOf({.view = "localty"}).find("(did you mean locality?)"), std::string::npos);
    EXPECT_NE(messageOf({.output = "x.bmp"}).find(".png, .svg or .pdf"), std::string::npos);
    EXPECT_NE(messageOf({.theme = "neon"}).find("neon"), std::string::npos);
    EXPECT_NE(messageOf({.size = {1, 1}}).find("1x1"), std::string::npos);
    EXPECT_NE(messageOf({.trace = file("missing.kvtrace")}).find("missing.kvtrace"), std::string::npos);
    EXPECT_NE(messageOf({.runId = 9}).find("no run 9"), std::string::npos);
    const std::string nowhere = messageOf({.output = file("nowhere/x.png")});
    EXPECT_NE(nowhere.find("nowhere/x.png could not be written: No such file or directory"), std::string::npos)
        << nowhere;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
