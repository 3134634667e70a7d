// The Denoising view against the trace: what a cell looks like and says, what a click and a key do, and that no row of
// a damaged trace makes it fall.
#include "tests/ui/view_fixture.h"

#include "profiler/read/denoising.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/ui/nameless_controls.h"
#include "ui/plots/denoise_plottable.h"
#include "ui/plots/legend_strip.h"

#include <QComboBox>
#include <QPushButton>
#include <QToolTip>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class DenoisingViewTest : public ViewTest {
protected:
    enum { Confidence, Change, Active }; // of the picker

    void openDenoised(const synthetic::RunShape& shape = {}, RecordLevel level = RecordLevel::Full, int tileRows = 0) {
        synthetic::recordDenoising(folder / "run.kvtrace", shape, 8, level, tileRows);
        open(file("run.kvtrace"));
    }
    /// Every forward is dense, over a canvas.
    void openCanvas(const synthetic::RunShape& shape) {
        synthetic::recordDenoising(folder / "run.kvtrace", shape, 8);
        synthetic::makeCanvas(file("run.kvtrace").toStdString());
        open(file("run.kvtrace"));
    }
    QString picture() {
        EXPECT_TRUE(view->exportImage(file("picture.svg"), {1200, 800}));
        QFile svg(file("picture.svg"));
        EXPECT_TRUE(svg.open(QIODevice::ReadOnly));
        return QString::fromUtf8(svg.readAll());
    }
    /// Of one layer and KV head, or of all of them.
    ForwardRows forwards(int layer = 0, int kvHead = 0, int sequence = 0) {
        const TraceReader reader(file("run.kvtrace").toStdString());
        return readForwards(reader, {.runId = 1, .sequence = sequence, .layer = layer, .kvHead = kvHead, .filter = {}},
                            0, reader.stepCount(1) - 1);
    }
    void colourBy(int number) {
        child<QComboBox>("colouring").setCurrentIndex(number);
        canvas().replot();
    }
    void pick(const char* picker, const QString& text) {
        auto& box = child<QComboBox>(picker);
        ASSERT_GE(box.findText(text), 0) << text.toStdString();
        box.setCurrentText(text);
        ASSERT_TRUE(idle());
        canvas().replot();
    }
    /// The colour of a cell beside its marks. `image`: the canvas without the cursor's mark.
    QColor cellColour(const QImage& image, int step, int position) {
        const QPoint corner(pixel(step - 0.5, position - 0.5)), next(pixel(step + 0.5, position + 0.5));
        return image.pixelColor(corner + QPoint(3, (next.y() - corner.y()) / 3));
    }
    QImage cells() {
        canvas().overlay().setVisible(false);
        canvas().replot();
        const QImage image = canvas().grab().toImage();
        canvas().overlay().setVisible(true);
        return image;
    }
    QString tooltip(int step, int position, std::size_t panel = 0) {
        move(pixel(step, position, panel));
        EXPECT_TRUE(idle());
        return QToolTip::text();
    }
    void change(const std::string& sql) { test::sql(file("run.kvtrace").toStdString(), sql, SQLITE_OPEN_READWRITE); }
    void expectNear(const QColor& found, const QColor& wanted, const std::string& what) {
        EXPECT_NEAR(found.red(), wanted.red(), 3) << what;
        EXPECT_NEAR(found.green(), wanted.green(), 3) << what;
        EXPECT_NEAR(found.blue(), wanted.blue(), 3) << what;
    }
};

TEST_F(DenoisingViewTest, ColoursMaskedPositionsByConfidenceAndMarksWhatIsWritten) {
    openDenoised({.promptTokens = 204, .decodeSteps = 24}); // the block where the prompt ends has tokens of it
    show("denoising", {1200, 800});
    const ForwardRows all = forwards();
    const QImage image = cells();
    int masked = 0, before = 0, written = 0;
    for (const ForwardRow& row : all.rows)
        for (const ForwardCell& cell : all.cellsOf(row)) {
            const std::string what = "step " + std::to_string(row.step) + ", " + std::to_string(cell.position);
            const QColor found = cellColour(image, row.step, cell.position);
            expectNear(found,
                       cell.masked() ? QColor(Theme::sequential(double(cell.confidence)))
                                     : DenoisePlottable::writtenBefore(Theme::light()),
                       what);
            ++(cell.masked() ? masked : before);
            const QColor centre = image.pixelColor(pixel(row.step, cell.position) + QPoint(1, 1));
            EXPECT_EQ(centre == Theme::light().text, cell.written) << what;
            written += cell.written ? 1 : 0;
        }
    EXPECT_GT(masked, 60);
    EXPECT_GT(before, 60);
    EXPECT_GT(written, 15);
    const ForwardRow& first = all.rows.front();
    EXPECT_EQ(image.pixelColor(pixel(first.step, first.lastPosition + 3)), Theme::light().plotBackground)
        << "a block that has not begun is empty";
    const ForwardRow& last = all.rows.back();
    expectNear(cellColour(image, last.step, first.firstPosition), DenoisePlottable::writtenBefore(Theme::light()),
               "a block that is done");
}

TEST_F(DenoisingViewTest, ColoursActiveTokensOfTheHeadOrTheShareOfAll) {
    openDenoised({.layers = 3, .denseLayers = 1, .decodeSteps = 20});
    show("denoising", {1200, 800});
    workspace.setCursor({.layer = 2, .kvHead = 1});
    ASSERT_TRUE(idle());
    colourBy(Active);
    const auto check = [&](const ForwardRows& all) {
        const QImage image = cells();
        std::set<float> shares;
        for (const ForwardRow& row : all.rows)
            for (const ForwardCell& cell : all.cellsOf(row)) {
                expectNear(cellColour(image, row.step, cell.position),
                           std::isnan(cell.active) ? DenoisePlottable::dense(Theme::light())
                                                   : QColor(Theme::sequential(double(cell.active))),
                           "step " + std::to_string(row.step) + ", " + std::to_string(cell.position));
                if (!std::isnan(cell.active)) shares.insert(cell.active);
            }
        return shares;
    };
    EXPECT_EQ(check(forwards(2, 1)), (std::set<float>{0, 1}));
    pick("layer", "All");
    pick("kvHead", "All");
    EXPECT_EQ(check(forwards(-1, -1)), (std::set<float>{0, 0.5f, 1})) << "of the two layers that choose pages";
    EXPECT_EQ(workspace.cursor().layer, 2) << "where the cursor was";
    pick("layer", "1");
    EXPECT_EQ(workspace.cursor().layer, 1);
}

TEST_F(DenoisingViewTest, ColoursChangesUpToTheirLargest) {
    openDenoised({.decodeSteps = 20});
    show("denoising", {1200, 800});
    colourBy(Change);
    const ForwardRows all = forwards();
    const QImage image = cells();
    for (const ForwardCell& cell : all.cellsOf(all.rows[0]))
        expectNear(cellColour(image, 1, cell.position), DenoisePlottable::unknown(Theme::light()),
                   "the first forward of a block has none before it");
    const auto [least, most] =
        std::minmax_element(all.cellsOf(all.rows[2]).begin(), all.cellsOf(all.rows[2]).end(),
                            [](const ForwardCell& a, const ForwardCell& b) { return a.change < b.change; });
    const auto lightness = [&](const ForwardCell& cell) { return cellColour(image, 3, cell.position).lightness(); };
    EXPECT_NE(lightness(*least), lightness(*most));
    EXPECT_TRUE(plot().noteText().contains("which 2 % of the cells exceed")) << plot().noteText().toStdString();
}

TEST_F(DenoisingViewTest, SaysThatCountersKeepNoChanges) {
    openDenoised({.decodeSteps = 20}, RecordLevel::Counters);
    show("denoising");
    colourBy(Change);
    EXPECT_TRUE(plot().noteText().contains("recorded at level counters")) << plot().noteText().toStdString();
}

TEST_F(DenoisingViewTest, TooltipsTellWhatBecameOfAPosition) {
    openDenoised({.promptTokens = 204, .decodeSteps = 24});
    show("denoising", {1200, 800});
    const ForwardRows all = forwards();
    const ForwardRow& row = all.rows[2]; // the third forward of the first block
    std::map<int, int> writtenAt;
    for (const ForwardRow& each : all.rows)
        for (const ForwardCell& cell : all.cellsOf(each))
            if (cell.written) writtenAt[cell.position] = each.step;
    int masked = 0, now = 0, prompt = 0;
    for (const ForwardCell& cell : all.cellsOf(row)) {
        const QString text = tooltip(row.step, cell.position);
        SCOPED_TRACE(text.toStdString());
        EXPECT_TRUE(text.contains(QStringLiteral("decode step 3, position %1").arg(cell.position)));
        EXPECT_TRUE(text.contains("forward 3 of block 25"));
        now += cell.written ? 1 : 0;
        prompt += cell.position < 204 ? 1 : 0;
        if (cell.written) {
            EXPECT_TRUE(text.contains("Written at this step"));
        } else if (cell.position < 204) {
            EXPECT_TRUE(text.contains("Of the prompt"));
        } else {
            EXPECT_TRUE(text.contains(QStringLiteral("Written at step %1").arg(writtenAt[cell.position])));
        }
        if (cell.masked()) {
            ++masked;
            EXPECT_TRUE(text.contains("Masked; candidate"));
            EXPECT_TRUE(text.contains(QStringLiteral("token %1").arg(cell.candidate)));
            EXPECT_TRUE(text.contains(" %</b>")) << "confidence has its unit";
            EXPECT_TRUE(text.contains(
                QString::fromStdString(synthetic::words()[std::size_t(cell.candidate)]).trimmed().toHtmlEscaped()));
        }
        EXPECT_TRUE(text.contains(cell.active > 0 ? "active</b>, attends to the prefix anew" : "uses what it had"));
        EXPECT_TRUE(text.contains("Change score"));
    }
    EXPECT_EQ(now, 1);
    EXPECT_EQ(prompt, 4);
    EXPECT_EQ(masked, row.masked);
    EXPECT_TRUE(tooltip(1, all.rows.back().lastPosition).contains("Of a later block"));
}

TEST_F(DenoisingViewTest, TheDensityPanelHasTheNumbersOfTheStep) {
    openDenoised({.layers = 3, .decodeSteps = 24});
    show("denoising", {1200, 800});
    ASSERT_EQ(canvas().panels().size(), 2u);
    const QString sparse = tooltip(4, 0, 1);
    const std::string of = " FROM v_denoise_layer WHERE run_id = 1 AND step = 4";
    const auto percent = [&](const std::string& more) {
        return QString::number(
            100 * std::stod(test::value(file("run.kvtrace").toStdString(), "SELECT avg(density)" + of + more)), 'g', 3);
    };
    EXPECT_TRUE(sparse.contains(percent(" AND layer = 0 AND kv_head = 0"))) << sparse.toStdString();
    EXPECT_TRUE(sparse.contains("Mean of all layers and KV heads: " + percent(""))) << sparse.toStdString();
    EXPECT_TRUE(sparse.contains("positions masked")) << sparse.toStdString();
    EXPECT_TRUE(tooltip(1, 0, 1).contains("Dense: ")) << "the first forward attends to everything";
}

TEST_F(DenoisingViewTest, TheLegendNamesTheDensityWhereItsPanelIsSeen) {
    openDenoised();
    show("denoising", {1000, 700});
    const auto named = [&](const QString& text) {
        const QCPLayoutGrid* grid = canvas().plotLayout();
        for (int i = 0; i < grid->elementCount(); ++i)
            if (const auto* strip = qobject_cast<LegendStrip*>(grid->elementAt(i)))
                for (const Swatch& swatch : strip->swatches())
                    if (swatch.text == text) return true;
        return false;
    };
    EXPECT_TRUE(named(QStringLiteral("density")));
    view->resize(800, 360);
    QCoreApplication::processEvents();
    ASSERT_LT(canvas().height(), 320) << "too low for the panel";
    EXPECT_FALSE(named(QStringLiteral("density")));
    EXPECT_TRUE(named(QStringLiteral("written before")));
    view->resize(1000, 700);
    QCoreApplication::processEvents();
    EXPECT_TRUE(named(QStringLiteral("density")));
}

TEST_F(DenoisingViewTest, RowsOfTilesAreALineInTheDensityPanel) {
    openDenoised({.layers = 3, .decodeSteps = 24}, RecordLevel::Full, 2);
    show("denoising", {1200, 800});
    const std::string of = " FROM v_denoise_tile WHERE run_id = 1 AND step = 4 AND layer = 0 AND kv_head = 0";
    const auto percent = [&](const std::string& value) {
        return QString::number(100 * std::stod(test::value(file("run.kvtrace").toStdString(), "SELECT " + value + of)),
                               'g', 3);
    };
    const QString text = tooltip(4, 0, 1);
    EXPECT_TRUE(text.contains("row of tiles: " + percent("avg(density)"))) << text.toStdString();
    EXPECT_TRUE(text.contains(percent("min(density)"))) << text.toStdString();
    EXPECT_TRUE(text.contains("to " + percent("max(density)"))) << text.toStdString();
    EXPECT_FALSE(tooltip(1, 0, 1).contains("row of tiles")) << "a dense forward";
    EXPECT_TRUE(plot().noteText().contains("one query head keeps")) << plot().noteText().toStdString();
    const QString drawn = picture();
    EXPECT_TRUE(drawn.contains("density of one row of tiles"));
    EXPECT_FALSE(drawn.contains(">active<")) << "every token is, and no mark tells them apart";
    const QImage image = cells();
    const ForwardRows all = forwards();
    const ForwardRow& row = *std::find_if(all.rows.begin(), all.rows.end(), [](const auto& r) { return r.step == 4; });
    int found = 0;
    const QPoint at = pixel(4, double(row.meanRow), 1);
    for (int y = -1; y <= 1; ++y) found += image.pixelColor(at + QPoint(0, y)) == Theme::light().runB ? 1 : 0;
    EXPECT_GT(found, 0) << "the line is at the mean of the rows";
    colourBy(Active);
    EXPECT_TRUE(plot().noteText().contains("Every token attends to its pages")) << plot().noteText().toStdString();
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    EXPECT_TRUE(lines[0].endsWith(",density,row_density"));
    for (const QString& line : lines.mid(1))
        EXPECT_EQ(line.section(QLatin1Char(','), -1).isEmpty(), line.section(QLatin1Char(','), -2, -2).isEmpty());
}

TEST_F(DenoisingViewTest, OtherRunsHaveNoRowsOfTiles) {
    openDenoised({.decodeSteps = 24});
    show("denoising", {1200, 800});
    EXPECT_FALSE(picture().contains("row of tiles"));
    EXPECT_TRUE(picture().contains(">active<"));
    EXPECT_FALSE(tooltip(4, 0, 1).contains("row of tiles"));
    EXPECT_FALSE(plot().noteText().contains("row of tiles"));
}

TEST_F(DenoisingViewTest, PickersFollowTheCursorWhereARunHasNoForwards) {
    open(recorded("plain.kvtrace", {.layers = 3}));
    show("denoising", {1200, 800});
    workspace.setCursor({.step = 1, .layer = 2});
    EXPECT_EQ(child<QComboBox>("layer").currentText(), "2");
    workspace.setCursor({.step = 1, .layer = 0});
    EXPECT_EQ(child<QComboBox>("layer").currentText(), "0");
}

TEST_F(DenoisingViewTest, ACanvasHasNoPrefix) {
    openCanvas({.decodeSteps = 24});
    show("denoising", {1200, 800});
    EXPECT_FALSE(canvas().panels()[1]->visible()) << "there is no share of a prefix";
    EXPECT_FALSE(picture().contains("prefill"));
    EXPECT_TRUE(plot().noteText().contains("Empty: masks of later blocks.")) << plot().noteText().toStdString();
    const ForwardRows all = forwards();
    const QString text = tooltip(4, all.rows[3].firstPosition);
    EXPECT_TRUE(text.contains("attends to all of prompt and canvas")) << text.toStdString();
    for (const int number : {Confidence, Change, Active}) {
        colourBy(number);
        for (const QString& said : {picture(), plot().noteText(), tooltip(4, all.rows[3].firstPosition)}) {
            EXPECT_FALSE(said.contains("prefix")) << said.toStdString();
            EXPECT_FALSE(said.contains("ensity")) << said.toStdString();
        }
    }
    synthetic::recordDenoising(folder / "other.kvtrace", {.decodeSteps = 24});
    open(file("other.kvtrace"));
    EXPECT_TRUE(canvas().panels()[1]->visible()) << "a run with a prefix has one";
}

TEST_F(DenoisingViewTest, OnACanvasDensityIsOfTheTokensOutsideTheBlock) {
    synthetic::recordDenoising(folder / "run.kvtrace", {.decodeSteps = 24}, 8, RecordLevel::Full, 1);
    change("INSERT INTO run_meta VALUES (1, 'denoising_canvas', '32'); DELETE FROM denoise_tile;"
           "UPDATE denoise_layer SET changes = NULL; UPDATE run SET block_size = 1");
    open(file("run.kvtrace"));
    show("denoising", {1200, 800});
    // The blocks of this trace are none of a canvas. The view reads once more when the rules say so.
    ASSERT_TRUE(waitFor([&] { return plot().noteText().contains("break rules"); }));
    ASSERT_TRUE(idle());
    EXPECT_TRUE(canvas().panels()[1]->visible());
    const ForwardRows all = forwards();
    const ForwardRow& row = all.rows[3];
    ASSERT_FALSE(row.dense);
    EXPECT_TRUE(tooltip(row.step, 0, 1).contains("of 24 tokens")) << QToolTip::text().toStdString();
    EXPECT_TRUE(tooltip(row.step, row.firstPosition).contains("tokens that were kept"))
        << QToolTip::text().toStdString();
    for (const int number : {Confidence, Change, Active}) {
        colourBy(number);
        EXPECT_TRUE(plot().noteText().contains("tokens outside the block")) << plot().noteText().toStdString();
        for (const QString& said : {picture(), plot().noteText(), tooltip(row.step, row.firstPosition)})
            EXPECT_FALSE(said.contains("prefix")) << said.toStdString();
    }
    EXPECT_FALSE(picture().contains(">active<"));
}

TEST_F(DenoisingViewTest, ClicksAndKeysMoveTheCursorAndTheMark) {
    openDenoised({.decodeSteps = 24});
    show("denoising", {1200, 800});
    click(7, 203);
    EXPECT_EQ(workspace.cursor().step, 7);
    EXPECT_EQ(workspace.cursor().block, 203 / workspace.current()->row.blockSize);
    EXPECT_EQ(canvas().overlay().markOf(canvas().panels()[0]).y, 203);
    EXPECT_TRUE(plot().cursorText().contains("decode step 7, position 203")) << plot().cursorText().toStdString();
    QTest::keyClick(&canvas(), Qt::Key_Down, Qt::AltModifier);
    EXPECT_EQ(canvas().overlay().markOf(canvas().panels()[0]).y, 204);
    QTest::keyClick(&canvas(), Qt::Key_Up, Qt::AltModifier);
    QTest::keyClick(&canvas(), Qt::Key_Up, Qt::AltModifier);
    EXPECT_EQ(canvas().overlay().markOf(canvas().panels()[0]).y, 202);
    EXPECT_TRUE(plot().cursorText().contains("position 202"));
    QTest::keyClick(&canvas(), Qt::Key_Right);
    EXPECT_EQ(workspace.cursor().step, 8);
    for (int i = 0; i < 400; ++i) QTest::keyClick(&canvas(), Qt::Key_Up, Qt::AltModifier);
    EXPECT_EQ(canvas().overlay().markOf(canvas().panels()[0]).y, 200) << "the first position of the first block";
    click(9, 0, 1);
    EXPECT_EQ(workspace.cursor().step, 9) << "in the density panel";
}

TEST_F(DenoisingViewTest, PutsTheBlocksSideBySide) {
    openDenoised({.promptTokens = 204, .decodeSteps = 24});
    show("denoising", {1200, 800});
    wheel(canvas().panels()[0]->center(), 2, Qt::ControlModifier);
    view->resetZoom();
    child<QComboBox>("rows").setCurrentText("Block");
    const QCPRange rows = canvas().panels()[0]->axis(QCPAxis::atLeft)->range();
    EXPECT_EQ(rows.lower, -0.5);
    EXPECT_EQ(rows.upper, 7.5);
    const ForwardRows all = forwards();
    const QImage image = cells();
    for (const ForwardRow& row : all.rows)
        for (const ForwardCell& cell : all.cellsOf(row))
            expectNear(cellColour(image, row.step, cell.position - row.firstPosition),
                       cell.masked() ? QColor(Theme::sequential(double(cell.confidence)))
                                     : DenoisePlottable::writtenBefore(Theme::light()),
                       "step " + std::to_string(row.step) + ", " + std::to_string(cell.position));
    const ForwardRow& late = all.rows[15];
    EXPECT_GT(late.firstPosition, all.rows[0].firstPosition);
    click(late.step, 3);
    EXPECT_EQ(workspace.cursor().step, late.step);
    EXPECT_TRUE(plot().cursorText().contains(QStringLiteral("position %1").arg(late.firstPosition + 3)))
        << plot().cursorText().toStdString();
    for (int i = 0; i < 20; ++i) QTest::keyClick(&canvas(), Qt::Key_Down, Qt::AltModifier);
    EXPECT_EQ(canvas().overlay().markOf(canvas().panels()[0]).y, 7) << "the last of the block";
    workspace.setCursor({.step = 1, .block = workspace.cursor().block});
    ASSERT_TRUE(idle());
    EXPECT_FALSE(canvas().overlay().markOf(canvas().panels()[0]).y) << "the first forward reads another block";
    child<QComboBox>("rows").setCurrentText("Sequence");
    EXPECT_EQ(canvas().panels()[0]->axis(QCPAxis::atLeft)->range().lower, 199.5);
    EXPECT_FALSE(canvas().isZoomed());
}

TEST_F(DenoisingViewTest, PartsTheCellsOfEveryStep) {
    openDenoised({.decodeSteps = 31});
    show("denoising", {1117, 801});
    child<QComboBox>("rows").setCurrentText("Block");
    const QImage image = cells();
    for (int step = 2; step < 31; ++step) {
        int gaps = 0;
        for (int x = -1; x <= 1; ++x)
            gaps += image.pixelColor(pixel(step - 0.5, 3) + QPoint(x, 2)) == Theme::light().plotBackground ? 1 : 0;
        const bool frame = (step - 1) % 9 == 0; // of a block, on the gap
        EXPECT_EQ(gaps, frame ? 0 : 1) << "step " << step;
    }
}

TEST_F(DenoisingViewTest, ShowsTheOtherSequence) {
    openDenoised({.sequences = 2, .decodeSteps = 24});
    show("denoising", {1200, 800});
    pick("sequence", "1");
    EXPECT_EQ(workspace.cursor().sequence, 1);
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    EXPECT_EQ(lines.size() - 1, qsizetype(forwards(0, 0, 1).cells.size()));
    for (const QString& line : lines.mid(1)) EXPECT_EQ(line.split(QLatin1Char(','))[1], "1");
}

TEST_F(DenoisingViewTest, SaysWhyARunOfATokenModelHasNone) {
    open(recorded("a.kvtrace", {}));
    show("denoising");
    EXPECT_TRUE(plot().emptyText().contains("This run decodes token by token")) << plot().emptyText().toStdString();
    EXPECT_TRUE(view->exportCsv().isEmpty());
    EXPECT_TRUE(view->sql().isEmpty());
    openDenoised({.decodeSteps = 20});
    EXPECT_EQ(plot().emptyText(), QString());
}

TEST_F(DenoisingViewTest, ShowsUnderAFilterWhatItsSqlSays) {
    openDenoised({.layers = 4, .sequences = 2, .decodeSteps = 30});
    show("denoising");
    pick("layer", "All");
    pick("kvHead", "All");
    struct Case {
        const char *layers, *heads, *steps, *text;
    };
    for (const Case& each :
         {Case{"", "", "", ""}, {"1-2", "", "", ""}, {"", "1", "3-8, 15-", ""}, {"0, 2", "0", "2-18", "e"}}) {
        Filter filter;
        filter.layers = *IndexSet::fromText(QLatin1String(each.layers));
        filter.kvHeads = *IndexSet::fromText(QLatin1String(each.heads));
        filter.steps = *IndexSet::fromText(QLatin1String(each.steps));
        filter.text = QLatin1String(each.text);
        workspace.setFilter(filter);
        ASSERT_TRUE(idle());
        const auto rows = test::sql(file("run.kvtrace").toStdString(), view->sql().toStdString()).rows;
        const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
        ASSERT_EQ(std::size_t(lines.size()), rows.size() + 1) << view->sql().toStdString();
        ASSERT_GT(rows.size(), 20u);
        // step, seq, position, input, token, confidence, written, active, density
        const int columns[] = {0, 1, 5, 6, -1, 8, 9, 11, 14};
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const QStringList shown = lines[qsizetype(i) + 1].split(QLatin1Char(','));
            for (std::size_t column = 0; column < 9; ++column) {
                if (columns[column] < 0) continue;
                const QString& value = shown[columns[column]];
                if (rows[i][column] == "NULL")
                    EXPECT_EQ(value, QString()) << "row " << i << ", column " << column;
                else
                    EXPECT_NEAR(value.toDouble(), std::stod(rows[i][column]), 1e-6) << "row " << i << " " << column;
            }
            EXPECT_EQ((shown[7].isEmpty() ? shown[6] : shown[7]).toStdString(), rows[i][4]);
        }
    }
}

TEST_F(DenoisingViewTest, ALayerThatTheFilterLeavesOutLeadsToAllOfThem) {
    openDenoised({.layers = 4, .decodeSteps = 20});
    show("denoising");
    Filter filter;
    filter.layers = *IndexSet::fromText(QStringLiteral("2-3"));
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains("Layer 0, KV head 0 is left out by the filter"))
        << plot().emptyText().toStdString();
    child<QPushButton>("emptyAction0").click();
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString());
    EXPECT_EQ(child<QComboBox>("layer").currentText(), "All");
    filter.layers = {};
    filter.text = QStringLiteral("nothing says this");
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains("No forward passes the filter")) << plot().emptyText().toStdString();
}

TEST_F(DenoisingViewTest, NamesItsControlsAndItsPicture) {
    openDenoised({.decodeSteps = 20});
    show("denoising");
    int checked = 0;
    EXPECT_EQ(namelessControls(*view, checked), QStringList());
    EXPECT_GE(checked, 4);
    EXPECT_FALSE(canvas().accessibleName().isEmpty());
    const QString drawn = picture();
    EXPECT_TRUE(drawn.contains("Denoising, sequence 0, layer 0, KV head 0"));
    EXPECT_TRUE(drawn.contains("written at this step"));
}

TEST_F(DenoisingViewTest, ALowPlotLeavesTheDensityOut) {
    openDenoised({.decodeSteps = 20});
    show("denoising", {700, 300});
    EXPECT_FALSE(canvas().panels()[1]->visible());
    EXPECT_GT(canvas().panels()[0]->height(), 60);
    view->resize(700, 700);
    QCoreApplication::processEvents();
    canvas().replot();
    EXPECT_TRUE(canvas().panels()[1]->visible());
}

/// What somebody or something may have done to the rows of a trace. The tables lose what the schema forbids.
class DamagedForwards : public DenoisingViewTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(DamagedForwards, AreShownAsFarAsTheyGo) {
    synthetic::recordDenoising(folder / "run.kvtrace", {.layers = 2, .sequences = 2, .decodeSteps = 30}, 8,
                               RecordLevel::Full, 2);
    std::string loose;
    for (const char* table : {"denoise", "denoise_token", "denoise_layer", "denoise_tile"})
        loose += fmt::format(
            "CREATE TABLE loose AS SELECT * FROM {0}; DROP TABLE {0}; ALTER TABLE loose RENAME TO {0};", table);
    change("DROP VIEW v_denoise; DROP VIEW v_denoise_token; DROP VIEW v_denoise_layer; DROP VIEW v_denoise_tile;" +
           loose + GetParam());
    open(file("run.kvtrace"));
    show("denoising", {900, 640});
    for (const int number : {Confidence, Change, Active}) {
        colourBy(number);
        pick("layer", number == Change ? "All" : "0");
        child<QComboBox>("rows").setCurrentText(number == Active ? "Block" : "Sequence");
        EXPECT_FALSE(cells().isNull());
        for (int step = 0; step < 31; step += 6)
            for (const double share : {0.0, 0.4, 1.0}) {
                const QCPRange rows = canvas().panels()[0]->axis(QCPAxis::atLeft)->range();
                move(pixel(step, rows.lower + share * rows.size()));
                move(pixel(step, 0.5, 1));
            }
        ASSERT_TRUE(idle());
        click(5, canvas().panels()[0]->axis(QCPAxis::atLeft)->range().center());
        QTest::keyClick(&canvas(), Qt::Key_Down, Qt::AltModifier);
        view->exportCsv();
    }
    wheel(canvas().panels()[0]->center(), 6);
    EXPECT_TRUE(view->exportImage(file("damaged.png"), {640, 400}));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, DamagedForwards,
    ::testing::Values(
        "DELETE FROM denoise", "DELETE FROM denoise_token", "DELETE FROM denoise_layer",
        "DELETE FROM denoise WHERE id % 3 = 0", "DELETE FROM denoise_token WHERE (id & 1023) IN (0, 5)",
        "DELETE FROM denoise_layer WHERE (id >> 30) % 2 = 0", "DROP TABLE denoise_layer", "DROP TABLE denoise_token",
        "UPDATE denoise SET block = NULL, denoise_step = NULL, kind = NULL, masked = NULL, written = NULL",
        "UPDATE denoise_token SET position = NULL, input_id = NULL, written = NULL",
        "UPDATE denoise_token SET confidence = NULL", "UPDATE denoise_token SET candidate = NULL",
        "UPDATE denoise_layer SET mode = NULL, active = NULL, active_set = NULL, pages = NULL, density = NULL",
        "UPDATE denoise_layer SET density = NULL, changes = NULL",
        "UPDATE denoise SET block = -7, denoise_step = -1, kind = 9, masked = -3, written = -4",
        "UPDATE denoise_token SET position = -position, input_id = -1, candidate = -2, confidence = -1e300",
        "UPDATE denoise_token SET position = 2147483647 - (id & 1023), confidence = 9e999",
        "UPDATE denoise_token SET position = 2147483647 WHERE (id & 1023) = 3",
        "UPDATE denoise_token SET position = 9223372036854775807 WHERE (id & 1023) = 3",
        "UPDATE denoise SET block = 9223372036854775807 WHERE rowid % 5 = 0",
        "UPDATE denoise_token SET input_id = -9223372036854775808",
        "UPDATE denoise_token SET position = position * (id % 7)",
        "UPDATE denoise_layer SET active_set = -1, pages = 9223372036854775807, density = 1e308",
        "UPDATE denoise_layer SET density = -5, mode = 77, pages = -9",
        "UPDATE denoise_layer SET changes = x'0000C07F0000807F000080FF0102'",
        "UPDATE denoise_layer SET changes = zeroblob(100000)",
        "UPDATE denoise_layer SET changes = x'FFFF7F7FFFFF7F7FFFFF7F7FFFFF7F7F'", "DROP TABLE denoise_tile",
        "UPDATE denoise_tile SET densities = NULL", "UPDATE denoise_tile SET densities = x'00FF5B5B'",
        "UPDATE denoise_tile SET densities = '[[-1, 9e999, nan, 2]'",
        "INSERT INTO denoise_tile SELECT id, densities FROM denoise_tile",
        "UPDATE denoise_token SET confidence = 'much', candidate = 'that one', position = 'there'",
        "UPDATE denoise_layer SET density = 'half', active_set = x'FF', changes = 'text', mode = 'sparse'",
        "INSERT INTO denoise_token SELECT id, position, input_id, candidate, confidence, written FROM denoise_token",
        "INSERT INTO denoise SELECT id, block + 1, denoise_step, kind, masked, written FROM denoise",
        "UPDATE run_meta SET value = '-16' WHERE key = 'denoising_block'",
        "UPDATE run_meta SET value = '99999999999999' WHERE key = 'denoising_block'",
        "UPDATE run SET block_size = 2000000000", "UPDATE run SET block_size = 0"));

TEST(DenoisePlottable, RendersAMillionCells) {
    constexpr int kSteps = 62'500, kBlock = 16;
    DenoiseSteps data;
    for (int first = 0; first < kSteps; first += kTileSteps) {
        const int count = std::min(kTileSteps, kSteps - first);
        ForwardRows rows;
        for (int step = first; step < first + count; ++step) {
            ForwardRow row;
            row.step = step;
            row.block = step / 17;
            row.firstCell = std::uint32_t(rows.cells.size());
            row.cells = kBlock;
            row.firstPosition = row.block * kBlock;
            row.lastPosition = row.firstPosition + kBlock - 1;
            for (int i = 0; i < kBlock; ++i) {
                ForwardCell cell;
                cell.position = row.firstPosition + i;
                cell.candidate = i >= step % 17 ? 5 : -1;
                cell.confidence = cell.masked() ? float(i) / kBlock : std::nanf("");
                cell.written = i == step % 17;
                rows.cells.push_back(cell);
            }
            rows.rows.push_back(row);
        }
        data.place(first, std::make_shared<DenoiseTile>(std::move(rows), first, count));
    }
    ASSERT_EQ(data.steps(), kSteps);
    QCustomPlot plot;
    auto* cells = new DenoisePlottable(plot.xAxis, plot.yAxis, data);
    for (const auto& [steps, positions] :
         {std::pair(QCPRange(-0.5, kSteps - 0.5), QCPRange(data.lowest() - 0.5, data.highest() + 0.5)),
          std::pair(QCPRange(30'000.5, 31'000.5), QCPRange(28'200, 29'200))}) {
        const QImage image = cells->render(steps, positions, {1600, 900}, 1);
        EXPECT_NE(image.pixel(800, 450), 0u) << "the diagonal runs through the middle";
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
