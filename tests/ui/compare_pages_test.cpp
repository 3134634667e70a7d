// The pages of the Compare view on pairs of recorded runs.
#include "tests/ui/view_fixture.h"

#include "tests/ui/picture.h"

#include "profiler/compare/compare.h"
#include "profiler/compare/difference.h"
#include "profiler/compare/divergence.h"
#include "profiler/compare/overlap.h"
#include "ui/frame/units.h"

#include <QComboBox>
#include <QLabel>
#include <QPushButton>
#include <QTabBar>
#include <QTableWidget>
#include <QToolTip>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

enum Page { Summary, Difference, Breakdown, Overlap, Divergence };

class ComparePagesTest : public ViewTest {
protected:
    /// A is shown, the others are open; B is compared with.
    void openPair(const RunShape& a, const RunShape& b, RecordLevel level = RecordLevel::Full) {
        open(recorded("b.kvtrace", b, level));
        keyB = workspace.current()->key;
        open(recorded("a.kvtrace", a));
        keyA = workspace.current()->key;
        workspace.setCompare(keyB);
    }
    void page(Page wanted) {
        if (!view) {
            for (const ViewEntry& entry : views())
                if (std::string_view(entry.id) == "compare") view.reset(entry.make(workspace, nullptr));
            view->resize(1200, 800);
            view->show();
            EXPECT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        }
        child<QTabBar>("comparePages").setCurrentIndex(wanted);
        ASSERT_TRUE(idle());
        if (wanted != Divergence) canvas().replot();
    }
    TraceReader readerOf(const RunKey& key) const { return TraceReader(key.path.toStdString()); }
    void choose(const char* picker, const QString& text) {
        QComboBox* found = nullptr;
        for (QComboBox* each : view->findChildren<QComboBox*>(QLatin1String(picker)))
            if (each->isVisible()) found = each;
        ASSERT_TRUE(found) << picker;
        ASSERT_GE(found->findText(text), 0) << text.toStdString();
        found->setCurrentIndex(found->findText(text));
        ASSERT_TRUE(idle());
        canvas().replot();
    }
    static int distance(const QColor& a, const QColor& b) {
        return std::abs(a.red() - b.red()) + std::abs(a.green() - b.green()) + std::abs(a.blue() - b.blue());
    }
    RunKey keyA, keyB;
};

TEST_F(ComparePagesTest, DifferenceColoursBMinusAAroundZero) {
    openPair({.decodeSteps = 16}, {.decodeSteps = 20, .seed = 9});
    page(Difference);
    choose("metric", QStringLiteral("Misses"));
    const auto a = readerOf(keyA).layerMatrix(1, Metric::Misses), b = readerOf(keyB).layerMatrix(1, Metric::Misses);
    EXPECT_EQ(canvas().fullX().upper, 16.5) << "the steps that both have";
    float largest = 0, usual = 0;
    std::vector<float> sizes;
    for (int step = 1; step <= 16; ++step)
        for (int layer = 0; layer < 4; ++layer) sizes.push_back(std::abs(b.at(step, layer) - a.at(step, layer)));
    std::sort(sizes.begin(), sizes.end());
    largest = sizes.back(), usual = sizes[std::size_t(double(sizes.size() - 1) * 0.99)];
    ASSERT_LE(largest, 3 * usual) << "else the colours are capped, and this test must know";
    for (const int step : {2, 5, 9, 16})
        for (int layer = 0; layer < 4; ++layer) {
            const float difference = b.at(step, layer) - a.at(step, layer);
            const QColor wanted(Theme::diverging(0.5 + double(difference / largest) / 2));
            EXPECT_LE(distance(colourAt(step, layer), wanted), 12) << step << ' ' << layer << ' ' << difference;
        }
    move(pixel(9, 2));
    EXPECT_TRUE(QToolTip::text().contains(
        QStringLiteral("A %1, B %2")
            .arg(formatValue(Unit::Count, double(a.at(9, 2))), formatValue(Unit::Count, double(b.at(9, 2))))))
        << QToolTip::text().toStdString();
    click(9, 2);
    EXPECT_EQ(workspace.cursor().step, 9);
    EXPECT_EQ(workspace.cursor().layer, 2);
    const QStringList line = view->exportCsv().split(QLatin1Char('\n'))[9].split(QLatin1Char(','));
    EXPECT_EQ(line[0], QStringLiteral("9"));
    EXPECT_FLOAT_EQ(line[5].toFloat(), b.at(9, 2) - a.at(9, 2));
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("4 of B's have no counterpart")))
        << plot().noteText().toStdString();
}

TEST_F(ComparePagesTest, DifferenceByTokenBeginsAtThePositionsBothHave) {
    openPair({.promptTokens = 200, .decodeSteps = 20}, {.promptTokens = 206, .decodeSteps = 20});
    page(Difference);
    choose("align", QStringLiteral("Token"));
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 15) << "a header and positions 207 to 220";
    EXPECT_TRUE(lines[1].startsWith(QStringLiteral("207,7,1,"))) << lines[1].toStdString();
    const auto a = readerOf(keyA).layerMatrix(1, Metric::Locality), b = readerOf(keyB).layerMatrix(1, Metric::Locality);
    EXPECT_FLOAT_EQ(lines[4].split(QLatin1Char(','))[4].toFloat(), b.at(4, 1) - a.at(10, 1))
        << "layer 1 at position 210";
    click(3, 1);
    EXPECT_EQ(workspace.cursor().step, 10) << "A's step at position 210";
}

TEST_F(ComparePagesTest, DifferenceByLayerHasIntervals) {
    openPair({.decodeSteps = 40}, {.decodeSteps = 40, .seed = 3});
    page(Difference);
    choose("metric", QStringLiteral("Misses"));
    choose("align", QStringLiteral("Layer"));
    const TraceReader a = readerOf(keyA), b = readerOf(keyB);
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const auto deltas = layerDeltas(readPairs(a, 1, b, 1, Metric::Misses, {}, alignment.pairs), alignment.pairs);
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 5);
    for (int layer = 0; layer < 4; ++layer) {
        const QStringList cells = lines[layer + 1].split(QLatin1Char(','));
        EXPECT_NEAR(cells[4].toDouble(), deltas[std::size_t(layer)].delta.value, 1e-6);
        EXPECT_NEAR(cells[5].toDouble(), deltas[std::size_t(layer)].delta.low, 1e-6);
        EXPECT_NEAR(cells[6].toDouble(), deltas[std::size_t(layer)].delta.high, 1e-6);
    }
    EXPECT_EQ(canvas().panels().size(), 2u);
}

TEST_F(ComparePagesTest, DifferenceRefusesOtherLayersWithASentence) {
    openPair({.layers = 4}, {.layers = 6});
    page(Difference);
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("A has 4 layers and B 6")))
        << plot().emptyText().toStdString();
    choose("align", QStringLiteral("Layer"));
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("A has 4 layers and B 6")));
}

TEST_F(ComparePagesTest, DifferenceFollowsTheFilter) {
    openPair({}, {.seed = 2});
    page(Difference);
    Filter filter;
    filter.layers = *IndexSet::fromText(QStringLiteral("1"));
    filter.steps = *IndexSet::fromText(QStringLiteral("4-6"));
    workspace.setFilter(filter);
    ASSERT_TRUE(idle());
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    EXPECT_EQ(lines[5].split(QLatin1Char(','))[3], QString()) << "layer 0 is left out";
    EXPECT_NE(lines[5].split(QLatin1Char(','))[4], QString());
    EXPECT_EQ(lines[8].split(QLatin1Char(','))[4], QString()) << "step 8 too";
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("Filtered: layers 1, steps 4-6.")));
}

TEST_F(ComparePagesTest, OverlapPlotsTheJaccardOfEveryRunAgainstA) {
    openPair({}, {.queryAware = 3, .seed = 4});
    open(recorded("c.kvtrace", {.kvHeads = 3}));
    const RunKey keyC = workspace.current()->key;
    workspace.setCurrent(keyA);
    page(Overlap);
    const TraceReader a = readerOf(keyA), b = readerOf(keyB);
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const OverlapRows rows = readOverlap(a, 1, b, 1, alignment.pairs);
    const auto perPair = overlapPerPair(rows), perLayer = overlapPerLayer(rows, alignment.pairs);
    QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 1 + 20 + 4);
    EXPECT_NEAR(lines[7].split(QLatin1Char(','))[3].toDouble(), perPair[6], 1e-6);
    EXPECT_NEAR(lines[23].split(QLatin1Char(','))[3].toDouble(), perLayer[2], 1e-6);
    workspace.setCompared(keyC, true);
    ASSERT_TRUE(idle());
    EXPECT_EQ(workspace.sides().size(), 3u);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("A has 2 KV heads a layer and C 3")))
        << plot().noteText().toStdString();
    workspace.setCompared(keyB, false);
    ASSERT_TRUE(idle());
    ASSERT_TRUE(workspace.compare());
    EXPECT_EQ(workspace.compare()->key, keyC) << "the next one becomes B";
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("cannot be compared")));
}

TEST_F(ComparePagesTest, OverlapNeedsTheBlocks) {
    openPair({}, {}, RecordLevel::Counters);
    page(Overlap);
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("level counters"))) << plot().emptyText().toStdString();
    page(Difference);
    choose("metric", QStringLiteral("Overlap of the selections"));
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("level counters")));
}

TEST_F(ComparePagesTest, OverlapAsAHeatmap) {
    openPair({}, {.seed = 4});
    page(Difference);
    choose("metric", QStringLiteral("Overlap of the selections"));
    const TraceReader a = readerOf(keyA), b = readerOf(keyB);
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const OverlapRows rows = readOverlap(a, 1, b, 1, alignment.pairs);
    EXPECT_LE(distance(colourAt(6, 2), QColor(Theme::sequential(double(rows.jaccard[5 * 4 + 2])))), 9);
}

TEST_F(ComparePagesTest, BreakdownCountsRunsOfTheSameSettingsAsRepeats) {
    openPair({.decodeSteps = 60}, {.decodeSteps = 60, .window = 4, .seed = 2});
    open(recorded("a2.kvtrace", {.decodeSteps = 60, .seed = 5}));
    const RunKey repeat = workspace.current()->key;
    workspace.setCurrent(keyA);
    page(Breakdown);
    auto& table = child<QTableWidget>("breakdownDeltas");
    const auto row = [&](const char* name) {
        for (int i = 0; i < table.rowCount(); ++i)
            if (table.item(i, 0)->text() == QLatin1String(name)) return i;
        return -1;
    };
    ASSERT_GE(row("ffn"), 0);
    ASSERT_GE(row("step"), 0);
    const std::vector<RunSample> a{loadRunSample(readerOf(keyA), 1)}, b{loadRunSample(readerOf(keyB), 1)};
    Comparison comparison = compareRuns(a, b);
    const auto delta = [&](const char* name) -> const ComponentDelta& {
        return *std::find_if(comparison.components.begin(), comparison.components.end(),
                             [&](const ComponentDelta& d) { return d.component == name; });
    };
    EXPECT_EQ(table.item(row("ffn"), 1)->text(), formatValue(Unit::Nanoseconds, delta("ffn").aNs));
    EXPECT_EQ(table.item(row("ffn"), 2)->text(), formatValue(Unit::Nanoseconds, delta("ffn").bNs));
    const double alone = delta("ffn").deltaNs.high - delta("ffn").deltaNs.low;
    workspace.setCompared(repeat, true);
    ASSERT_TRUE(idle());
    EXPECT_EQ(table.horizontalHeaderItem(1)->text(), QStringLiteral("A (2 repeats)"));
    const std::vector<RunSample> both{a[0], loadRunSample(readerOf(repeat), 1)};
    comparison = compareRuns(both, b);
    EXPECT_EQ(table.item(row("ffn"), 1)->text(), formatValue(Unit::Nanoseconds, delta("ffn").aNs));
    // Two repeats: one degree of freedom, t = 12.7 at 95 %.
    double means[2] = {};
    int i = 0;
    for (const RunSample& run : both) {
        int count = 0;
        for (const StepSample& step : run.steps) {
            if (step.step <= 1 || step.mark.opensBlock) continue;
            means[i] += double(step.componentNs[std::size_t(Stage::Ffn)]);
            ++count;
        }
        means[i++] /= count;
    }
    const double spread = std::abs(means[0] - means[1]) / std::sqrt(2.);
    const double least = 2 * studentQuantile(0.95, 1) * spread * std::sqrt(1. / 2 + 1);
    EXPECT_GE(delta("ffn").deltaNs.high - delta("ffn").deltaNs.low, least - 1e-6);
    EXPECT_GT(alone, 0);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("as wide as the repeats differ")))
        << plot().noteText().toStdString();
    EXPECT_TRUE(view->exportCsv().contains(QStringLiteral("ffn,")));
}

TEST_F(ComparePagesTest, BreakdownSaysWhyRunsAreNotComparable) {
    openPair({.decodeSteps = 60}, {.sequences = 2, .decodeSteps = 60});
    page(Breakdown);
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("batch 1 against 2"))) << plot().emptyText().toStdString();
}

TEST_F(ComparePagesTest, DivergenceSaysTheFirstTokenAndTheFirstSelection) {
    openPair({.decodeSteps = 30}, {.decodeSteps = 30, .seed = 8});
    page(Divergence);
    const TraceReader a = readerOf(keyA), b = readerOf(keyB);
    const TokenComparison tokens = compareTokens(a, 1, b, 1, 0);
    ASSERT_TRUE(tokens.first);
    const QString said = child<QLabel>("firstToken").text();
    EXPECT_TRUE(said.contains(QStringLiteral("at position %1").arg(tokens.first->position))) << said.toStdString();
    EXPECT_TRUE(child<QLabel>("divergingText").text().contains(QStringLiteral("token %1").arg(tokens.first->idB)));
    const Alignment alignment = align(loadStepIndex(a, 1), loadStepIndex(b, 1), AlignBy::Step);
    const auto first = readOverlap(a, 1, b, 1, alignment.pairs).first;
    ASSERT_TRUE(first);
    const QString selection = child<QLabel>("firstSelection").text();
    EXPECT_TRUE(selection.contains(
        QStringLiteral("decode step %1, layer %2, KV head %3").arg(first->pair.a).arg(first->layer).arg(first->kvHead)))
        << selection.toStdString();
    workspace.setCursor({.step = 20, .layer = 3});
    QTest::mouseClick(&child<QPushButton>("goToSelection"), Qt::LeftButton);
    EXPECT_EQ(workspace.cursor().step, first->pair.a);
    EXPECT_EQ(workspace.cursor().layer, first->layer);
    EXPECT_TRUE(
        view->exportCsv().split(QLatin1Char('\n'))[1].contains(QStringLiteral(",%1,").arg(tokens.first->position)));
    EXPECT_TRUE(view->exportImage(file("divergence.png"), {900, 500}));
}

TEST_F(ComparePagesTest, DivergenceOfARunAndItsCopySaysThatAllIsTheSame) {
    openPair({}, {});
    page(Divergence);
    EXPECT_TRUE(child<QLabel>("firstToken").text().contains(QStringLiteral("The text is the same")));
    EXPECT_TRUE(child<QLabel>("firstSelection").text().contains(QStringLiteral("selects the same blocks")))
        << child<QLabel>("firstSelection").text().toStdString();
    EXPECT_FALSE(child<QPushButton>("goToToken").isVisible());
}

TEST_F(ComparePagesTest, AgainstFullAttentionEveryPageSaysThatItSelectsNothing) {
    openPair({}, {.denseLayers = 4, .method = "full"});
    page(Divergence);
    const QString said = child<QLabel>("firstSelection").text();
    EXPECT_FALSE(said.contains(QStringLiteral("selects the same blocks"))) << said.toStdString();
    EXPECT_TRUE(said.contains(QStringLiteral("B has no selected blocks in these steps"))) << said.toStdString();
    EXPECT_FALSE(child<QPushButton>("goToSelection").isVisible());

    page(Overlap);
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("B has no selected blocks")))
        << plot().emptyText().toStdString();

    page(Difference);
    for (const char* metric : {"Locality", "Hit rate"}) {
        choose("metric", QString::fromLatin1(metric));
        for (const char* along : {"Step", "Layer"}) {
            choose("align", QString::fromLatin1(along));
            EXPECT_TRUE(plot().emptyText().contains(
                QStringLiteral("B has no %1 in these steps").arg(QString::fromLatin1(metric).toLower())))
                << metric << ' ' << along;
            EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Full attention selects none"))) << metric;
        }
    }
    choose("metric", QStringLiteral("Overlap of the selections"));
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("B has no selected blocks")))
        << plot().emptyText().toStdString();
    QTest::mouseClick(&child<QPushButton>("emptyAction0"), Qt::LeftButton); // Show layer times
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().isEmpty()) << plot().emptyText().toStdString();
    EXPECT_FALSE(view->exportCsv().isEmpty());

    std::swap(keyA, keyB);
    workspace.setCurrent(keyA); // the other way round
    ASSERT_TRUE(idle());
    page(Overlap);
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("A has no selected blocks")))
        << plot().emptyText().toStdString();
}

TEST_F(ComparePagesTest, ARunThatSelectsBesideOneThatDoesNotIsStillDrawn) {
    openPair({}, {.denseLayers = 4, .method = "full"});
    open(recorded("c.kvtrace", {.seed = 5}));
    const RunKey keyC = workspace.current()->key;
    workspace.setCurrent(keyA);
    workspace.setCompare(keyB);
    workspace.setCompared(keyC, true);
    page(Overlap);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().isEmpty()) << plot().emptyText().toStdString();
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("B has no selected blocks")))
        << plot().noteText().toStdString();
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("C has no"))) << plot().noteText().toStdString();
}

TEST_F(ComparePagesTest, AFilterThatLeavesNothingIsNotBlamedOnTheRuns) {
    openPair({.denseLayers = 1}, {.denseLayers = 1, .seed = 4});
    Filter filter;
    filter.layers = *IndexSet::fromText(QStringLiteral("0"));
    workspace.setFilter(filter);
    for (const Page each : {Overlap, Difference}) {
        page(each);
        ASSERT_TRUE(idle());
        EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Nothing passes the filter")))
            << plot().emptyText().toStdString();
    }
}

TEST_F(ComparePagesTest, PicturesInBothThemes) {
    openPair({.layers = 8, .decodeSteps = 60},
             {.layers = 8, .decodeSteps = 60, .window = 4, .queryAware = 3, .seed = 6});
    for (const Theme* theme : {&Theme::light(), &Theme::dark()}) {
        Theme::apply(*qApp, *theme);
        const char* names[] = {"summary", "difference", "breakdown", "overlap", "divergence"};
        for (const Page each : {Summary, Difference, Breakdown, Overlap, Divergence}) {
            page(each);
            view->applyTheme(*theme);
            ASSERT_TRUE(idle());
            if (each == Difference) choose("metric", QStringLiteral("Misses"));
            const QString picture = file("picture.png");
            ASSERT_TRUE(view->exportImage(picture, {1000, 640}));
            expectPicture(QImage(picture), QStringLiteral("compare-%1-%2").arg(QLatin1String(names[each]), theme->id));
        }
    }
    Theme::apply(*qApp, Theme::light());
}

TEST_F(ComparePagesTest, EveryPageTeachesWithoutASecondRun) {
    open(recorded("a.kvtrace", {}));
    for (const Page each : {Summary, Difference, Breakdown, Overlap}) {
        page(each);
        EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("Choose a second run"))) << each;
    }
    page(Divergence);
    EXPECT_TRUE(child<QLabel>("divergenceEmpty").text().contains(QStringLiteral("Choose a second run")));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
