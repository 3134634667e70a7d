// Margins, sorting, previews and stopping, as a person meets them in the two heatmaps; and pictures of both, compared
// with kept ones.
#include "tests/support/places.h"
#include "tests/ui/view_fixture.h"

#include "ui/plots/margins.h"
#include "ui/plots/mask_plottable.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDir>
#include <QPushButton>
#include <QToolTip>

#include <cmath>
#include <filesystem>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class HeatmapTest : public ViewTest {
protected:
    Margins& margins() { return *view->findChild<Margins*>(); }
    StepMatrix matrix(Metric metric = Metric::Locality) {
        TraceReader reader(workspace.current()->key.path.toStdString());
        return reader.layerMatrix(workspace.current()->key.runId, metric);
    }
    static double meanOf(const StepMatrix& matrix, int row, int first, int last) {
        double sum = 0;
        int count = 0;
        for (int step = first; step < last; ++step)
            if (const float v = matrix.at(step, row); !std::isnan(v)) sum += double(v), ++count;
        return count ? sum / count : std::nan("");
    }
    std::pair<int, int> visibleSteps() {
        const QCPRange x = canvas().visibleX();
        return {std::max(0, int(std::ceil(x.lower))), int(std::floor(x.upper)) + 1};
    }
    QPoint onBar(double row) { return {margins().rowArea().center().x(), pixel(0, row).y()}; }
    QSize panelSize() { return canvas().panels()[0]->rect().size(); }
};

TEST_F(HeatmapTest, BarsAreTheMeansOfTheStepsInView) {
    open(recorded("a.kvtrace", {.layers = 5, .decodeSteps = 200}));
    show("locality");
    const StepMatrix all = matrix();
    const auto check = [&] {
        const auto [first, last] = visibleSteps();
        ASSERT_EQ(margins().rows().values().size(), 5u);
        for (int row = 0; row < 5; ++row)
            EXPECT_NEAR(double(margins().rows().values()[std::size_t(row)]), meanOf(all, row, first, last), 1e-6);
    };
    check();
    wheel(canvas().panels()[0]->center(), 8);
    EXPECT_LT(visibleSteps().second - visibleSteps().first, 150);
    check();
    drag(canvas().panels()[0]->center(), canvas().panels()[0]->center() + QPoint(120, 0));
    check();
}

TEST_F(HeatmapTest, SortsRowsByTheirMeanAndBack) {
    open(recorded("a.kvtrace", {.layers = 6, .decodeSteps = 120}));
    show("locality");
    const StepMatrix all = matrix();
    std::vector<int> expected{0, 1, 2, 3, 4, 5};
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int a, int b) { return meanOf(all, a, 0, 121) > meanOf(all, b, 0, 121); });
    ASSERT_NE(expected, (std::vector<int>{0, 1, 2, 3, 4, 5})) << "the run must not be sorted already";
    child<QComboBox>("sort").setCurrentIndex(1);
    for (int place = 0; place < 6; ++place) {
        click(40, place);
        EXPECT_EQ(workspace.cursor().layer, expected[std::size_t(place)]) << "place " << place;
        move(pixel(40, place));
        EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("layer %1").arg(expected[std::size_t(place)])));
        const float value = all.at(40, expected[std::size_t(place)]);
        const QColor wanted(Theme::sequential(double(value)));
        const QColor found = colourAt(40, place);
        EXPECT_LE(std::abs(found.red() - wanted.red()) + std::abs(found.green() - wanted.green()), 9);
    }
    const auto& bars = margins().rows().values();
    EXPECT_TRUE(std::is_sorted(bars.rbegin(), bars.rend()));
    canvas().replot();
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("sorted by their mean over steps 0 to 120")))
        << plot().noteText().toStdString();
    child<QComboBox>("sort").setCurrentIndex(2);
    click(40, 0);
    EXPECT_EQ(workspace.cursor().layer, expected[5]);
    child<QComboBox>("sort").setCurrentIndex(0);
    click(40, 0);
    EXPECT_EQ(workspace.cursor().layer, 0);
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("sorted")));
}

TEST_F(HeatmapTest, ABarIsHoveredClickedAndZoomedLikeItsRow) {
    open(recorded("a.kvtrace", {.layers = 8}));
    show("locality");
    move(onBar(3));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("layer 3"))) << QToolTip::text().toStdString();
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("mean")));
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, onBar(5));
    EXPECT_EQ(workspace.cursor().layer, 5);
    const QCPRange steps = canvas().visibleX(), rows = canvas().panels()[0]->axis(QCPAxis::atLeft)->range();
    wheel(onBar(4), 4);
    EXPECT_EQ(canvas().visibleX(), steps);
    EXPECT_LT(canvas().panels()[0]->axis(QCPAxis::atLeft)->range().size(), rows.size());
    view->undoZoom();
    EXPECT_EQ(canvas().panels()[0]->axis(QCPAxis::atLeft)->range(), rows);
}

TEST_F(HeatmapTest, TheCurveAboveFollowsTheZoomAndSaysItsMean) {
    open(recorded("a.kvtrace", {.layers = 3}));
    show("locality");
    const auto panel = std::size_t(margins().stepPanel());
    EXPECT_LT(canvas().panels()[panel]->rect().bottom(), canvas().panels()[0]->rect().top());
    const StepMatrix all = matrix();
    const double mean = (double(all.at(9, 0)) + double(all.at(9, 1)) + double(all.at(9, 2))) / 3;
    const QRect area = canvas().panels()[panel]->rect();
    move({pixel(9, 0).x(), area.center().y()});
    EXPECT_TRUE(QToolTip::text().contains(QString::number(mean, 'f', 3).left(4))) << QToolTip::text().toStdString();
    wheel(area.center(), 5);
    EXPECT_EQ(canvas().panels()[panel]->axis(QCPAxis::atBottom)->range(),
              canvas().panels()[0]->axis(QCPAxis::atBottom)->range());
    EXPECT_LT(canvas().visibleX().size(), 20);
}

TEST_F(HeatmapTest, MarginsCanBeHiddenAndGiveTheirRoomBack) {
    open(recorded("a.kvtrace", {}));
    for (const char* id : {"locality", "selection"}) {
        show(id);
        const QSize with = panelSize();
        child<QCheckBox>("margins").click();
        canvas().replot();
        const QSize without = panelSize();
        EXPECT_GT(without.width(), with.width() + 100) << id << ": the bars and the room around them";
        EXPECT_GT(without.height(), with.height() + 70) << id << ": the curve and the room around it";
        child<QCheckBox>("margins").click();
        canvas().replot();
        EXPECT_EQ(panelSize(), with) << id;
        view->resize(380, 320);
        QCoreApplication::processEvents();
        EXPECT_FALSE(margins().shown()) << "no room";
    }
}

TEST_F(HeatmapTest, ReadingStopsAndGoesOnAndThePreviewSaysWhatItIs) {
    open(recorded("long.kvtrace", {.layers = 2, .kvHeads = 1, .decodeSteps = 9000}));
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == "locality") view.reset(entry.make(workspace, nullptr));
    view->resize(1000, 640);
    view->show();
    // Stopped while the preview is being taken, the first thing that comes: a moment later all may have been read.
    auto& button = child<QPushButton>("stopReading");
    const auto stop = QObject::connect(canvas().panels()[0]->axis(QCPAxis::atBottom),
                                       qOverload<const QCPRange&>(&QCPAxis::rangeChanged), view.get(), [&] {
                                           if (canvas().fullX().size() > 2 && button.text() == QStringLiteral("Stop"))
                                               button.click();
                                       });
    ASSERT_TRUE(waitFor([&] { return button.text() == QStringLiteral("Read on"); }));
    QObject::disconnect(stop);
    EXPECT_EQ(canvas().fullX().upper, 9000.5) << "of the whole run";
    ASSERT_TRUE(idle());
    canvas().replot();
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("stands for its neighbours")))
        << plot().noteText().toStdString();
    EXPECT_TRUE(button.isVisible());
    EXPECT_EQ(button.text(), QStringLiteral("Read on"));
    move(pixel(8000, 1));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("Not read yet"))) << QToolTip::text().toStdString();
    button.click();
    ASSERT_TRUE(idle());
    canvas().replot();
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("neighbours")));
    EXPECT_FALSE(button.isVisible());
    const StepMatrix all = matrix();
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 9002);
    for (const int step : {2, 4095, 4096, 4097, 8192, 9000})
        EXPECT_NEAR(lines[step + 1].split(QLatin1Char(','))[2].toDouble(), double(all.at(step, 1)), 1e-6) << step;
}

TEST_F(HeatmapTest, BlockBarsCountSelectionsAndMisses) {
    open(recorded("a.kvtrace", {.decodeSteps = 40}));
    show("selection");
    TraceReader reader(workspace.current()->key.path.toStdString());
    const auto rows = reader.selections(workspace.current()->key.runId, 0, 0, 0);
    const auto check = [&] {
        const auto [first, last] = visibleSteps();
        std::vector<double> selected(64), missed(64);
        for (const SelectionRow& row : rows)
            for (const PackedBlock block : row.blocks)
                if (row.step >= first && row.step < last) {
                    selected[std::size_t(block.id())] += 1.0 / (last - first);
                    missed[std::size_t(block.id())] += block.hit() ? 0 : 1.0 / (last - first);
                }
        ASSERT_FALSE(margins().rows().values().empty());
        for (std::size_t block = 0; block < margins().rows().values().size(); ++block) {
            EXPECT_NEAR(double(margins().rows().values()[block]), selected[block], 1e-6) << "block " << block;
            EXPECT_NEAR(double(margins().rows().inner()[block]), missed[block], 1e-6) << "block " << block;
        }
    };
    check();
    wheel(canvas().panels()[0]->center(), 6);
    check();
    move(onBar(2));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("Block 2"))) << QToolTip::text().toStdString();
    QTest::mouseClick(&canvas(), Qt::LeftButton, {}, onBar(6));
    EXPECT_EQ(workspace.cursor().block, 6);
}

MaskChunk flicker(int steps) { // block 10 at every other step, block 30 always and missed once in four
    MaskChunk chunk;
    for (int step = 0; step < steps; ++step) {
        if (step % 2) chunk.cells.push_back({10, MaskBits((1 << int(Origin::Sink)) | kMaskHit)});
        chunk.cells.push_back({30, MaskBits((1 << int(Origin::Window)) | (step % 4 ? kMaskHit : kMaskMiss))});
        chunk.endStep();
    }
    return chunk;
}

TEST(MaskPlottable, ShowsAShareByTheStrengthOfTheColour) {
    MaskPyramid data;
    data.append(flicker(20'000));
    QCustomPlot plot;
    auto* mask = new MaskPlottable(plot.xAxis, plot.yAxis, data);
    mask->setColouring(MaskPlottable::Colouring::Origin, false);
    mask->setZoomed(MaskPlottable::Zoomed::Share);
    const auto render = [&] { return mask->render({-0.5, 19'999.5}, {-0.5, 39.5}, {500, 40}, 1); };
    QImage image = render();
    const QColor half = QColor::fromRgba(qUnpremultiply(reinterpret_cast<const QRgb*>(image.constScanLine(29))[250]));
    const QColor whole = QColor::fromRgba(qUnpremultiply(reinterpret_cast<const QRgb*>(image.constScanLine(9))[250]));
    EXPECT_NEAR(half.alphaF(), 0.12 + 0.88 * 0.5, 0.01);
    EXPECT_NEAR(whole.alphaF(), 1, 0.01);
    EXPECT_NEAR(half.red(), Theme::light().origin[0].red(), 3);
    EXPECT_NEAR(whole.red(), Theme::light().origin[1].red(), 3);
    mask->setColouring(MaskPlottable::Colouring::Residency, false);
    image = render();
    const QColor quarter = image.pixelColor(250, 9), hit = Theme::light().hit, miss = Theme::light().miss;
    EXPECT_NEAR(quarter.red(), 0.75 * hit.red() + 0.25 * miss.red(), 2);
    EXPECT_NEAR(quarter.blue(), 0.75 * hit.blue() + 0.25 * miss.blue(), 2);
    mask->setZoomed(MaskPlottable::Zoomed::Any);
    EXPECT_EQ(QColor(render().pixel(250, 9)), miss) << "any miss";
}

TEST(MaskPlottable, PansToTheSamePixelsAsADrawingAnew) {
    MaskPyramid data;
    data.append(flicker(30'000));
    QCustomPlot plot;
    auto* panned = new MaskPlottable(plot.xAxis, plot.yAxis, data);
    const double span = 8000;
    for (const double shift : {0.0, 160.0, 163.0, 40.0, -500.0, 12'000.0}) {
        for (const auto zoomed : {MaskPlottable::Zoomed::Any, MaskPlottable::Zoomed::Share}) {
            auto* anew = new MaskPlottable(plot.xAxis, plot.yAxis, data);
            panned->setZoomed(zoomed);
            anew->setZoomed(zoomed);
            for (const double further : {0.0, 10.0, 25.0, 400.0}) {
                const QCPRange steps(5000 + shift + further, 5000 + shift + further + span);
                ASSERT_EQ(panned->render(steps, {-0.5, 39.5}, {800, 60}, 1),
                          anew->render(steps, {-0.5, 39.5}, {800, 60}, 1))
                    << shift << " + " << further;
            }
        }
    }
    MaskChunk more = flicker(10);
    const QCPRange end(22'000, 30'009.5);
    const QImage before = panned->render(end, {-0.5, 39.5}, {800, 60}, 1);
    data.append(more);
    auto* anew = new MaskPlottable(plot.xAxis, plot.yAxis, data);
    anew->setZoomed(MaskPlottable::Zoomed::Share);
    EXPECT_EQ(panned->render(end, {-0.5, 39.5}, {800, 60}, 1), anew->render(end, {-0.5, 39.5}, {800, 60}, 1))
        << "what grew is drawn again";
}

/// The data of a panel, brought to one size: fonts differ between machines, and with them the room a panel has.
class Pictures : public HeatmapTest, public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {
protected:
    QImage panelPicture(std::size_t panel) {
        canvas().overlay().setVisible(false);
        canvas().replot();
        const QImage whole = canvas().grab().toImage().convertToFormat(QImage::Format_RGB32);
        canvas().overlay().setVisible(true);
        const double ratio = whole.devicePixelRatio();
        const QRect area = canvas().panels()[panel]->rect();
        const QRect device(QPoint(int(area.left() * ratio) + 1, int(area.top() * ratio) + 1),
                           (area.size() * ratio) - QSize(2, 2));
        return whole.copy(device).scaled(320, panel == 0 ? 200 : 40, Qt::IgnoreAspectRatio, Qt::SmoothTransformation);
    }
};

/// At most 3 % of the pixels may differ by more than 40 of 255 in a channel: the edges of cells fall elsewhere in a
/// panel of another size. A wrong colour map, order of rows, theme or aggregate changes far more.
TEST_P(Pictures, LookLikeTheKeptOnes) {
    const auto [id, theme] = GetParam();
    Theme::apply(*qApp, Theme::byId(QString::fromLatin1(theme)));
    open(recorded("a.kvtrace", {.layers = 12, .kvHeads = 2, .decodeSteps = 400, .seed = 5}));
    show(id, {1000, 640});
    child<QComboBox>(std::string_view(id) == "selection" ? "zoomed" : "sort").setCurrentIndex(1);
    const std::filesystem::path kept = std::filesystem::path(test::source("tests/golden")) / "ui";
    for (const std::size_t panel : {std::size_t(0), std::size_t(margins().stepPanel())}) {
        const QImage actual = panelPicture(panel);
        const QString name = QStringLiteral("%1-%2-%3.png")
                                 .arg(QLatin1String(id), QLatin1String(theme),
                                      panel == 0 ? QStringLiteral("plot") : QStringLiteral("margin"));
        const QString path = QString::fromStdString((kept / name.toStdString()).string());
        if (qEnvironmentVariableIsSet("KVSCOPE_KEEP_PICTURES")) { // after looking at them
            std::filesystem::create_directories(kept);
            ASSERT_TRUE(actual.save(path));
        }
        const QImage expected = QImage(path).convertToFormat(QImage::Format_RGB32);
        ASSERT_EQ(actual.size(), expected.size()) << path.toStdString();
        int different = 0;
        for (int y = 0; y < actual.height(); ++y)
            for (int x = 0; x < actual.width(); ++x) {
                const QColor a = actual.pixelColor(x, y), b = expected.pixelColor(x, y);
                different += std::max({std::abs(a.red() - b.red()), std::abs(a.green() - b.green()),
                                       std::abs(a.blue() - b.blue())}) > 40;
            }
        const QString seen = QDir::temp().filePath(QStringLiteral("kvscope-actual-") + name);
        if (different * 100 > 3 * actual.width() * actual.height()) actual.save(seen);
        EXPECT_LE(different * 100, 3 * actual.width() * actual.height())
            << name.toStdString() << "; what was drawn is in " << seen.toStdString();
    }
    Theme::apply(*qApp, Theme::light());
}

INSTANTIATE_TEST_SUITE_P(Heatmaps, Pictures,
                         ::testing::Combine(::testing::Values("locality", "selection"),
                                            ::testing::Values("light", "dark")),
                         [](const auto& test) {
                             return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
                         });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
