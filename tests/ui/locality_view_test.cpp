#include "tests/ui/view_fixture.h"

#include "ui/plots/heat_plottable.h"

#include <QComboBox>
#include <QToolTip>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class LocalityViewTest : public ViewTest {
protected:
    StepMatrix expected(Metric metric, HeadFilter filter = {}) {
        TraceReader reader(workspace.current()->key.path.toStdString());
        return reader.layerMatrix(workspace.current()->key.runId, metric, filter);
    }
    static int distance(const QColor& a, const QColor& b) {
        return std::abs(a.red() - b.red()) + std::abs(a.green() - b.green()) + std::abs(a.blue() - b.blue());
    }
};

TEST_F(LocalityViewTest, ColoursEveryCellByItsValueWithLayerZeroOnTop) {
    open(recorded("a.kvtrace", {}));
    show("locality");
    const StepMatrix matrix = expected(Metric::Locality);
    for (const int step : {0, 1, 2, 7, 20}) {
        for (int layer = 0; layer < 4; ++layer) {
            const float value = matrix.at(step, layer);
            const QColor wanted =
                std::isnan(value) ? Theme::light().undefinedCell : QColor(Theme::sequential(double(value)));
            EXPECT_LE(distance(colourAt(step, layer), wanted), 9)
                << "step " << step << " layer " << layer << " " << value;
        }
    }
    EXPECT_LT(pixel(0, 0).y(), pixel(0, 3).y());
}

TEST_F(LocalityViewTest, ShowsTheKvHeadsOfTheCursorsLayer) {
    open(recorded("a.kvtrace", {.kvHeads = 3, .sequences = 2}));
    show("locality");
    workspace.setCursor({.step = 3, .layer = 2});
    child<QComboBox>("rows").setCurrentIndex(2);
    ASSERT_TRUE(idle());
    EXPECT_EQ(canvas().panels()[0]->axis(QCPAxis::atLeft)->range().upper, 5.5) << "2 sequences x 3 heads";
    TraceReader reader(workspace.current()->key.path.toStdString());
    StepMatrix matrix = reader.headMatrix(workspace.current()->key.runId, Metric::Locality, 2);
    EXPECT_LE(distance(colourAt(5, 4), QColor(Theme::sequential(double(matrix.at(5, 4))))), 9);
    click(5, 4);
    EXPECT_EQ(workspace.cursor().step, 5);
    EXPECT_EQ(workspace.cursor().sequence, 1);
    EXPECT_EQ(workspace.cursor().kvHead, 1);
    EXPECT_EQ(workspace.cursor().layer, 2);

    child<QComboBox>("sequence").setCurrentIndex(2); // sequence 1
    ASSERT_TRUE(idle());
    EXPECT_EQ(canvas().panels()[0]->axis(QCPAxis::atLeft)->range().upper, 2.5);
    EXPECT_LE(distance(colourAt(5, 1), QColor(Theme::sequential(double(matrix.at(5, 4))))), 9);

    workspace.setCursor({.step = 3, .layer = 0});
    ASSERT_TRUE(idle());
    matrix = reader.headMatrix(workspace.current()->key.runId, Metric::Locality, 0);
    EXPECT_LE(distance(colourAt(5, 1), QColor(Theme::sequential(double(matrix.at(5, 4))))), 9) << "another layer now";
}

TEST_F(LocalityViewTest, ShowsEveryMetric) {
    open(recorded("a.kvtrace", {.oracle = true}));
    show("locality");
    auto& metric = child<QComboBox>("metric");
    ASSERT_EQ(metric.count(), int(metrics().size()));
    for (int i = 0; i < metric.count(); ++i) {
        metric.setCurrentIndex(i);
        ASSERT_TRUE(idle());
        const StepMatrix matrix = expected(metrics()[std::size_t(i)].metric);
        const QStringList line = view->exportCsv().split(QLatin1Char('\n'))[6].split(QLatin1Char(','));
        ASSERT_EQ(line[0], QStringLiteral("5"));
        const double factor = std::string_view(metrics()[std::size_t(i)].unit) == "µs" ? 1000 : 1; // shown in ns
        EXPECT_NEAR(line[2].toDouble(), double(matrix.at(5, 1)) * factor, 1e-3 * std::abs(line[2].toDouble()) + 1e-6)
            << metrics()[std::size_t(i)].id;
    }
}

TEST_F(LocalityViewTest, ClickingACellMovesTheCursorThere) {
    open(recorded("a.kvtrace", {}));
    show("locality");
    click(14, 2);
    EXPECT_EQ(workspace.cursor().step, 14);
    EXPECT_EQ(workspace.cursor().layer, 2);
}

TEST_F(LocalityViewTest, TooltipSaysTheExactValueAndWhatItMeans) {
    open(recorded("a.kvtrace", {}));
    show("locality");
    move(pixel(9, 1));
    const float value = expected(Metric::Locality).at(9, 1);
    const QString text = QToolTip::text();
    EXPECT_TRUE(text.contains(QStringLiteral("decode step 9"))) << text.toStdString();
    EXPECT_TRUE(text.contains(QStringLiteral("layer 1")));
    EXPECT_TRUE(text.contains(QString::number(double(value), 'f', 3).left(4)));
    EXPECT_TRUE(text.contains(QString::fromUtf8(metrics()[0].help).toHtmlEscaped().left(40)));
}

TEST_F(LocalityViewTest, ExplainsWhatCountersCannotShow) {
    open(recorded("a.kvtrace", {}, RecordLevel::Counters));
    show("locality");
    EXPECT_EQ(plot().emptyText(), QString());
    child<QComboBox>("rows").setCurrentIndex(2);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("level counters")));
}

TEST_F(LocalityViewTest, SaysHowManyStepsAPixelCovers) {
    open(recorded("a.kvtrace", {.layers = 1, .kvHeads = 1, .decodeSteps = 3000}));
    show("locality");
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("steps, mean"))) << plot().noteText().toStdString();
    child<QComboBox>("aggregate").setCurrentIndex(2);
    canvas().replot();
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("steps, maximum")));
    wheel(canvas().panels()[0]->center(), 20);
    canvas().replot();
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("1 pixel"))) << "every step has its pixels now";
}

TEST(HeatPlottable, NeverLosesOneHotStepAmongAHundredThousand) {
    StepPyramid data;
    data.reset(4);
    QCustomPlot plot;
    auto* heat = new HeatPlottable(plot.xAxis, plot.yAxis, data);
    heat->setColours({0, 1}, Qt::gray);
    heat->setAggregate(Aggregate::Max);
    std::vector<float> values(100'000 * 4, 0.f);
    const int hot = 73'421;
    values[std::size_t(hot) * 4 + 2] = 1.f;
    data.append(values);
    for (const int width : {1600, 997, 300}) {
        const QImage image = heat->render({-0.5, 99'999.5}, {-0.5, 3.5}, true, {width, 40});
        int found = 0;
        for (int x = 0; x < width; ++x) found += image.pixel(x, 25) == Theme::sequential(1) ? 1 : 0;
        EXPECT_EQ(found, 1) << width << " pixels wide";
        EXPECT_EQ(image.pixel(width / 10, 25), Theme::sequential(0));
        for (int x = 0; x < width; ++x) ASSERT_EQ(image.pixel(x, 5), Theme::sequential(0)) << "another row";
    }
}

TEST(HeatPlottable, DrawsTheMeanOfExactlyTheStepsOfAPixel) {
    StepPyramid data;
    data.reset(1);
    QCustomPlot plot;
    auto* heat = new HeatPlottable(plot.xAxis, plot.yAxis, data);
    heat->setColours({0, 1}, Qt::gray);
    std::vector<float> values(1000);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 10 < 5 ? 0.f : 1.f;
    data.append(values);
    const QImage image = heat->render({-0.5, 999.5}, {-0.5, 0.5}, true, {100, 3});
    for (int x = 0; x < 100; ++x) ASSERT_EQ(image.pixel(x, 1), Theme::sequential(128.0 / 255)) << "half of ten steps";
    const QImage fine = heat->render({-0.5, 999.5}, {-0.5, 0.5}, true, {200, 3});
    for (int x = 0; x < 200; ++x) ASSERT_EQ(fine.pixel(x, 1), Theme::sequential(x % 2));
}

// How long a frame takes kvscope-bench-desktop measures.
TEST(HeatPlottable, DrawsAWholeLongRun) {
    StepPyramid data;
    data.reset(32);
    QCustomPlot plot;
    auto* heat = new HeatPlottable(plot.xAxis, plot.yAxis, data);
    data.append(std::vector<float>(100'000 * 32, 0.5f));
    const QImage image = heat->render({-0.5, 99'999.5}, {-0.5, 31.5}, true, {1600, 900});
    ASSERT_EQ(image.size(), QSize(1600, 900));
    for (int x = 0; x < 1600; x += 13)
        for (int y = 0; y < 900; y += 7) ASSERT_EQ(image.pixel(x, y), Theme::sequential(128.0 / 255)) << x << ' ' << y;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
