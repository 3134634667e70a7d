// Three and more runs in a comparison: all of them are wherever a comparison is shown.
#include "tests/ui/view_fixture.h"

#include "profiler/read/summary.h"
#include "ui/frame/run_names.h"
#include "ui/frame/units.h"
#include "ui/plots/curve_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/widgets/comparison_table.h"

#include <QComboBox>
#include <QHeaderView>
#include <QLabel>
#include <QScrollBar>
#include <QTabBar>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

enum Page { Summary, Difference, Breakdown, Overlap, Divergence };

class CompareMany : public ViewTest {
protected:
    /// A is shown; B, C and D have other windows, so other names, letters and colours.
    void openFour(int sequences = 1) {
        for (const char* name : {"a.kvtrace", "b.kvtrace", "c.kvtrace", "d.kvtrace"}) {
            open(recorded(
                name,
                {.sequences = sequences, .decodeSteps = 60, .window = *name - 'a' + 2, .seed = std::uint64_t(*name)}));
            keys.push_back(workspace.current()->key);
        }
        workspace.setCurrent(keys[0]);
        for (std::size_t i = 1; i < keys.size(); ++i) workspace.setCompared(keys[i], true);
    }
    void page(Page wanted) {
        child<QTabBar>("comparePages").setCurrentIndex(wanted);
        ASSERT_TRUE(idle());
    }
    /// Which of the compared runs' names stand in the plot's legend.
    QStringList legend() {
        QStringList texts;
        const QCPLayoutGrid* grid = canvas().plotLayout();
        for (int i = 0; i < grid->elementCount(); ++i)
            if (const auto* strip = qobject_cast<LegendStrip*>(grid->elementAt(i)))
                for (const Swatch& swatch : strip->swatches()) texts << swatch.text;
        return texts;
    }
    void expectAllInTheLegend(const char* where) {
        for (std::size_t place = 0; place < keys.size(); ++place)
            EXPECT_TRUE(legend().contains(letteredName(place, workspace)))
                << where << ": " << letteredName(place, workspace).toStdString() << " in "
                << legend().join(QStringLiteral(" | ")).toStdString();
    }
    static void expectNothingIsCut(const QTableWidget& table) {
        const QFontMetrics metrics = table.fontMetrics();
        for (int column = 0; column < table.columnCount(); ++column) {
            EXPECT_GE(table.columnWidth(column), table.horizontalHeader()->fontMetrics().horizontalAdvance(
                                                     table.horizontalHeaderItem(column)->text()));
            for (int row = 0; row < table.rowCount(); ++row) {
                const QString text = table.item(row, column) ? table.item(row, column)->text() : QString();
                EXPECT_GE(table.columnWidth(column), metrics.horizontalAdvance(text)) << text.toStdString();
            }
        }
    }
    std::vector<RunKey> keys;
};

TEST_F(CompareMany, TransfersAndBreakdownDrawEveryRun) {
    openFour();
    show("transfers");
    expectAllInTheLegend("transfers");
    for (QCPAxisRect* panel : canvas().panels()) {
        int curves = 0;
        QSet<QRgb> colours;
        for (QCPAbstractPlottable* each : panel->plottables())
            if (qobject_cast<CurvePlottable*>(each)) ++curves, colours.insert(each->pen().color().rgb());
        EXPECT_EQ(curves, 4);
        EXPECT_EQ(colours.size(), 4);
        EXPECT_TRUE(colours.contains(runColour(2).rgb()));
    }
    workspace.setCompared(keys[3], false);
    ASSERT_TRUE(idle());
    EXPECT_EQ(legend().size(), 3);
    workspace.setCompared(keys[3], true);
    show("breakdown");
    expectAllInTheLegend("breakdown");
    EXPECT_EQ(canvas().panels().size(), 4u);
    child<QComboBox>("mode").setCurrentIndex(2);
    ASSERT_TRUE(idle());
    expectAllInTheLegend("breakdown in total");
    for (const RunKey& key : keys)
        EXPECT_TRUE(view->exportCsv().contains(runName(*workspace.find(key), workspace.runs())));
}

TEST_F(CompareMany, TheSummaryJudgesEveryRunAgainstA) {
    openFour();
    show("compare");
    const auto& verdict = child<QLabel>("verdict");
    ASSERT_TRUE(waitFor([&] { return verdict.isVisible(); }));
    EXPECT_EQ(verdict.text().count(QLatin1Char('\n')), 2) << verdict.text().toStdString();
    for (const char* letter : {"B takes", "C takes", "D takes"})
        EXPECT_TRUE(verdict.text().contains(QLatin1String(letter))) << verdict.text().toStdString();
    expectAllInTheLegend("summary");
    auto& table = child<ComparisonTable>("keyNumbers");
    ASSERT_EQ(table.columnCount(), 2 + 2 * 3);
    for (std::size_t place = 1; place < 4; ++place) {
        EXPECT_EQ(table.horizontalHeaderItem(int(2 * place))->toolTip(), letteredName(place, workspace));
        const RunSummary summary = summarize(TraceReader(keys[place].path.toStdString()), 1);
        QString hitRate;
        for (int row = 0; row < table.rowCount(); ++row)
            if (table.item(row, 0)->text() == QLatin1String("Hit rate"))
                hitRate = table.item(row, int(2 * place))->text();
        EXPECT_EQ(hitRate, formatValue(Unit::Percent, 100 * summary.hitRate));
    }
    view->resize(520, 600); // narrower than the table: it scrolls
    QCoreApplication::processEvents();
    expectNothingIsCut(table);
    page(Overlap);
    for (const char* letter : {"A and B", "A and C", "A and D"})
        EXPECT_TRUE(legend().filter(QLatin1String(letter)).size() == 1) << letter;
}

TEST_F(CompareMany, TheBreakdownsIntervalsAreNeverCut) {
    openFour();
    show("compare", {1200, 800});
    page(Breakdown);
    auto& table = child<ComparisonTable>("breakdownDeltas");
    ASSERT_TRUE(waitFor([&] { return table.isVisible(); }));
    EXPECT_EQ(table.columnCount(), 2 + 3 * 3);
    expectNothingIsCut(table);
    view->resize(560, 700);
    QCoreApplication::processEvents();
    expectNothingIsCut(table);
    expectAllInTheLegend("breakdown");
    for (int row = 0; row < table.rowCount(); ++row) { // an interval that holds 0 names no winner
        const QString interval = table.item(row, 4)->text(), delta = table.item(row, 3)->text();
        const bool holdsZero = !interval.startsWith(QLatin1Char('+')) && interval.contains(QStringLiteral("to +"));
        EXPECT_TRUE(delta != QLatin1String("cannot tell") || holdsZero) << interval.toStdString();
    }
}

TEST_F(CompareMany, OverlapSaysWhichSequencesItIsOf) {
    openFour(2);
    show("compare");
    page(Overlap);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("All 2 sequences of the batch.")))
        << plot().noteText().toStdString();
    const QString all = view->exportCsv();
    QComboBox* sequence = nullptr;
    for (QComboBox* each : view->findChildren<QComboBox*>(QStringLiteral("sequence")))
        if (each->isVisible()) sequence = each;
    ASSERT_TRUE(sequence);
    sequence->setCurrentIndex(2);
    ASSERT_TRUE(idle());
    canvas().replot();
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("Only sequence 1 of 2"))) << plot().noteText().toStdString();
    EXPECT_NE(view->exportCsv(), all);
    page(Divergence);
    EXPECT_TRUE(waitFor([&] {
        return child<QLabel>("firstToken").text().contains(QStringLiteral("of all 2 sequences"));
    })) << child<QLabel>("firstToken").text().toStdString();
}

TEST(ComparisonTableWidth, TitlesOfRowsGiveWayBeforeAColumnIsOutOfSight) {
    ComparisonTable table;
    const QString title = QStringLiteral("Tokens per second with the time between steps");
    table.begin(1, {QStringLiteral("Decode"), QStringLiteral("A: NOSA on nosa-tiny"), QStringLiteral("B: Quest")});
    table.put(0, 0, title, Qt::black, QStringLiteral("Pauses count"));
    table.put(0, 1, QStringLiteral("2,731 tokens/s"), Qt::black, {});
    table.put(0, 2, QStringLiteral("1,665 tokens/s"), Qt::black, {});
    const QFontMetrics metrics = table.fontMetrics();
    const int numbers = 2 * (metrics.horizontalAdvance(QStringLiteral("2,731 tokens/s")) + 40);
    table.resize(numbers + 200, 200); // less than the title needs
    table.show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(&table));
    QCoreApplication::processEvents();
    EXPECT_EQ(table.horizontalScrollBar()->maximum(), 0) << "no column is out of sight";
    EXPECT_LT(table.columnWidth(0), metrics.horizontalAdvance(title));
    EXPECT_TRUE(table.item(0, 0)->toolTip().contains(title)) << "where the title can be read";
    for (int column = 1; column < 3; ++column)
        EXPECT_GE(table.columnWidth(column), metrics.horizontalAdvance(table.item(0, column)->text()));
    EXPECT_TRUE(table.horizontalHeaderItem(1)->text().startsWith(QStringLiteral("A: NO")))
        << table.horizontalHeaderItem(1)->text().toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
