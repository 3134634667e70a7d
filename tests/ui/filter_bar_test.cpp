// The filter as a person types it, and the views that follow it.
#include "tests/ui/view_fixture.h"

#include "profiler/read/filtered.h"
#include "tests/profiler/sql_rows.h"
#include "ui/frame/run_names.h"
#include "ui/widgets/filter_bar.h"

#include <QComboBox>
#include <QLineEdit>
#include <QToolButton>
#include <QToolTip>

#include <cmath>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class FilterBarTest : public ViewTest {
protected:
    FilterBarTest() : bar(workspace) {
        bar.resize(1700, 44); // a tool bar without room hides its last fields
        bar.show();
        bar.activateWindow();
        EXPECT_TRUE(QTest::qWaitForWindowActive(&bar));
    }
    QLineEdit& field(const char* name) { return *bar.findChild<QLineEdit*>(QLatin1String(name)); }
    void type(const char* name, const QString& text) {
        field(name).setFocus();
        field(name).selectAll();
        QTest::keyClicks(&field(name), text);
        QTest::keyClick(&field(name), Qt::Key_Return);
    }
    FilterBar bar;
};

TEST_F(FilterBarTest, TypedRangesBecomeTheSharedFilter) {
    type("filterLayers", QStringLiteral("0-1,3"));
    type("filterSteps", QStringLiteral("5-9"));
    type("filterText", QStringLiteral("needle"));
    bar.findChild<QComboBox*>(QStringLiteral("filterComponent"))->setCurrentText(QStringLiteral("stage2"));
    EXPECT_EQ(workspace.filter().layers.text(), QStringLiteral("0-1, 3"));
    EXPECT_EQ(workspace.filter().steps.text(), QStringLiteral("5-9"));
    EXPECT_EQ(workspace.filter().text, QStringLiteral("needle"));
    EXPECT_EQ(workspace.filter().component, QStringLiteral("stage2"));
    EXPECT_EQ(field("filterLayers").property("role").toString(), QStringLiteral("active"));
    auto* clear = bar.findChild<QToolButton*>(QStringLiteral("filterClear"));
    EXPECT_TRUE(waitFor([&] { return clear->isVisible(); }));
    QTest::mouseClick(clear, Qt::LeftButton);
    EXPECT_TRUE(workspace.filter().empty());
    EXPECT_EQ(field("filterLayers").text(), QString());
    EXPECT_TRUE(waitFor([&] { return !clear->isVisible(); }));
}

TEST_F(FilterBarTest, AWrongTextIsRefusedWhereItIsTyped) {
    type("filterLayers", QStringLiteral("1-2"));
    type("filterLayers", QStringLiteral("5-2"));
    EXPECT_EQ(workspace.filter().layers.text(), QStringLiteral("1-2")) << "the filter stays as it was";
    EXPECT_TRUE(bar.problem().contains(QStringLiteral("Layers: “5-2”"))) << bar.problem().toStdString();
    EXPECT_EQ(field("filterLayers").text(), QStringLiteral("5-2")) << "and the text is there to be mended";
    type("filterLayers", QStringLiteral("2-5"));
    EXPECT_EQ(bar.problem(), QString());
    QTest::keyClick(&field("filterLayers"), Qt::Key_Escape);
    EXPECT_TRUE(workspace.filter().empty());
}

TEST_F(FilterBarTest, WhatTheRunDoesNotHaveIsRefused) {
    open(recorded("a.kvtrace", {.layers = 4, .kvHeads = 2}));
    type("filterHeads", QStringLiteral("9"));
    EXPECT_TRUE(workspace.filter().empty());
    EXPECT_TRUE(bar.problem().contains(QStringLiteral("KV heads: there is no 9, this run has 0 to 1")))
        << bar.problem().toStdString();
    EXPECT_EQ(field("filterHeads").property("role").toString(), QStringLiteral("danger"));
    type("filterHeads", QStringLiteral("1"));
    EXPECT_EQ(bar.problem(), QString());
    EXPECT_EQ(workspace.filter().kvHeads.text(), QStringLiteral("1"));
    type("filterLayers", QStringLiteral("2-7"));
    EXPECT_TRUE(bar.problem().contains(QStringLiteral("Layers: there is no 4"))) << bar.problem().toStdString();
    EXPECT_TRUE(workspace.filter().layers.all());
    type("filterLayers", QStringLiteral("2-")); // to the end, wherever that is
    EXPECT_EQ(bar.problem(), QString());
    open(recorded("b.kvtrace", {.layers = 12, .kvHeads = 2}));
    workspace.setCurrent(workspace.runs().back().key);
    type("filterLayers", QStringLiteral("2-7"));
    EXPECT_EQ(bar.problem(), QString()) << "this run has them";
}

TEST_F(FilterBarTest, NoPlaceholderIsCut) {
    for (const char* name : {"filterLayers", "filterHeads", "filterSteps"})
        EXPECT_GE(field(name).width() - 16, field(name).fontMetrics().horizontalAdvance(field(name).placeholderText()))
            << name;
}

TEST_F(FilterBarTest, TakesTheStepsThatAPlotSelected) {
    open(recorded("a.kvtrace", {}));
    auto* take = bar.findChild<QToolButton*>(QStringLiteral("filterSelectedSteps"));
    EXPECT_FALSE(take->isEnabled());
    workspace.setCursor({.step = 4, .firstStep = 3, .lastStep = 8});
    ASSERT_TRUE(take->isEnabled());
    QTest::mouseClick(take, Qt::LeftButton);
    EXPECT_EQ(workspace.filter().steps.text(), QStringLiteral("3-8"));
}

TEST_F(FilterBarTest, ShowsAFilterThatSomethingElseSet) {
    Filter filter;
    filter.kvHeads = *IndexSet::fromText(QStringLiteral("1"));
    workspace.setFilter(filter);
    EXPECT_EQ(field("filterHeads").text(), QStringLiteral("1"));
}

class FilteredViews : public ViewTest {
protected:
    void filter(const char* layers, const char* steps, const char* component = "") {
        Filter wanted;
        wanted.layers = *IndexSet::fromText(QLatin1String(layers));
        wanted.steps = *IndexSet::fromText(QLatin1String(steps));
        wanted.component = QLatin1String(component);
        workspace.setFilter(wanted);
        ASSERT_TRUE(idle());
        canvas().replot();
    }
};

TEST_F(FilteredViews, TransfersCountOnlyTheLayersAndStepsOfTheFilter) {
    open(recorded("a.kvtrace", {}));
    show("transfers");
    filter("1-2", "5-8");
    const TraceReader reader(workspace.current()->key.path.toStdString());
    const auto rows = filteredSteps(reader, 1, {{{1, 2}}, {}, {{5, 8}}, {}, {}});
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 5);
    for (int i = 0; i < 4; ++i) {
        const QStringList cells = lines[i + 1].split(QLatin1Char(','));
        EXPECT_EQ(cells[1].toInt(), 5 + i);
        EXPECT_EQ(cells[3].toLongLong(), rows[std::size_t(i)].misses);
        EXPECT_LT(cells[3].toLongLong(), reader.steps(1)[std::size_t(5 + i)].misses)
            << "four layers have more than two";
    }
    EXPECT_TRUE(plot().noteText().startsWith(QStringLiteral("Filtered: layers 1-2, steps 5-8.")))
        << plot().noteText().toStdString();
    filter("", "");
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("Filtered")));
    EXPECT_EQ(view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts).size(), 21);
    filter("", "900-");
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("No decode step passes the filter")));
}

TEST_F(FilteredViews, BreakdownShowsTheComponentAndLayersOfTheFilter) {
    open(recorded("a.kvtrace", {}));
    show("breakdown");
    filter("2", "4-6", "ffn");
    const QStringList lines = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 4);
    const TraceReader reader(workspace.current()->key.path.toStdString());
    for (int step = 4; step <= 6; ++step) {
        const QStringList cells = lines[step - 3].split(QLatin1Char(','));
        const auto layers = reader.layers(1, step);
        for (int i = 0; i < kStageCount; ++i)
            EXPECT_EQ(cells[2 + i].toLongLong(), Stage(i) == Stage::Ffn ? layers[2].stageNs[std::size_t(i)] : 0);
    }
    child<QComboBox>("mode").setCurrentIndex(1); // per layer
    ASSERT_TRUE(idle());
    const QStringList sums = view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts);
    ASSERT_EQ(sums.size(), 2) << "one layer, one component, one phase";
    EXPECT_TRUE(sums[1].contains(QStringLiteral("decode,2,ffn,3,")));
}

TEST_F(FilteredViews, LocalityLeavesOtherLayersAndStepsUndefined) {
    open(recorded("a.kvtrace", {}));
    show("locality");
    const QColor undefined = Theme::light().undefinedCell;
    EXPECT_NE(colourAt(7, 1), undefined);
    filter("1-2", "7-9");
    EXPECT_EQ(canvas().panels()[0]->axis(QCPAxis::atLeft)->range().size(), 2) << "the other layers take no room";
    EXPECT_NE(colourAt(7, 0), undefined);
    EXPECT_NE(colourAt(7, 1), undefined);
    EXPECT_EQ(colourAt(12, 1), undefined);
    move(pixel(7, 0));
    EXPECT_TRUE(QToolTip::text().contains(QStringLiteral("layer 1"))) << QToolTip::text().toStdString();
    click(7, 1);
    EXPECT_EQ(workspace.cursor().layer, 2);
}

TEST_F(FilteredViews, BreakdownSaysWhichRunHasNothingThatPasses) {
    open(recorded("long.kvtrace", {.decodeSteps = 20}));
    open(recorded("short.kvtrace", {.decodeSteps = 6}));
    workspace.setCurrent(workspace.runs().front().key);
    workspace.setCompare(workspace.runs().back().key);
    show("breakdown");
    const QString name = runName(workspace.runs().back(), workspace.runs());
    for (const int mode : {0, 1}) { // per step, per layer
        child<QComboBox>("mode").setCurrentIndex(mode);
        filter("", "10-12");
        EXPECT_EQ(plot().noteText().count(QStringLiteral("Nothing of %1 passes the filter.").arg(name)), 1)
            << plot().noteText().toStdString();
        filter("", "2-12");
        EXPECT_FALSE(plot().noteText().contains(QStringLiteral("Nothing of")));
    }
}

TEST_F(FilteredViews, LocalitySaysWhereBytesOfAHeadAreNotKnown) {
    const QString path = recorded("a.kvtrace", {});
    test::sql(path.toStdString(),
              "UPDATE layer_step SET h2d_bytes = h2d_bytes + 1, h2d_blocks = h2d_blocks + 1;"
              "UPDATE step SET (h2d_bytes, h2d_blocks) = (SELECT sum(h2d_bytes), sum(h2d_blocks) FROM layer_step"
              " WHERE layer_step.id >> 10 = step.id)",
              SQLITE_OPEN_READWRITE);
    open(path);
    show("locality");
    auto& metric = child<QComboBox>("metric");
    metric.setCurrentIndex(metric.findData(QStringLiteral("h2d_bytes")));
    ASSERT_TRUE(idle());
    EXPECT_EQ(plot().emptyText(), QString()) << "of layers they are recorded";
    child<QComboBox>("rows").setCurrentIndex(1);
    ASSERT_TRUE(idle());
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("not known per KV head")))
        << plot().emptyText().toStdString();
}

TEST_F(FilteredViews, AViewSaysWhatItDoesNotFilter) {
    open(recorded("a.kvtrace", {}));
    show("selection");
    filter("1", "7-9");
    filter("0-2", "7-9", "ffn");
    EXPECT_TRUE(plot().noteText().contains(
        QStringLiteral("Filtered: layers 0-2, steps 7-9. Not filtered here: component ffn.")))
        << plot().noteText().toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
