// Runs whose stages' times are not known. Their columns may hold anything, such as all of a layer's time in one of
// them, as the trace that docs/trace-format.md writes by hand: a step is then drawn whole, and no stage is named.
#include "tests/profiler/sql_rows.h"
#include "tests/ui/timeline_fixture.h"

#include "ui/plots/legend_strip.h"
#include "ui/plots/stack_plottable.h"
#include "ui/widgets/inspector.h"

#include <QComboBox>
#include <QToolTip>

#include <algorithm>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class UnknownStages : public TimelineTest {
protected:
    static constexpr int kSteps = 8, kLayers = 3;

    QString foreign(const char* name) {
        const QString path = recorded(name, {.layers = kLayers, .decodeSteps = kSteps});
        test::sql(path.toStdString(),
                  "UPDATE layer_step SET attention_ns = qkv_linear_ns + rope_ns + compression_ns + stage1_ns +"
                  " pooling_ns + offloading_ns + stage2_ns + attention_ns + o_linear_ns + ffn_ns;"
                  "UPDATE layer_step SET qkv_linear_ns = 0, rope_ns = 0, compression_ns = 0, stage1_ns = 0,"
                  " pooling_ns = 0, offloading_ns = 0, stage2_ns = 0, o_linear_ns = 0, ffn_ns = 0;"
                  "INSERT OR REPLACE INTO run_meta VALUES (1, 'knows', '[\"selections\",\"hits\",\"bytes\","
                  "\"transfer_times\",\"exposed_times\",\"step_times\"]')",
                  SQLITE_OPEN_READWRITE);
        return path;
    }
    QStringList legend() {
        QStringList texts;
        const QCPLayoutGrid* grid = ViewTest::canvas().plotLayout();
        for (int i = 0; i < grid->elementCount(); ++i)
            if (const auto* strip = qobject_cast<LegendStrip*>(grid->elementAt(i)))
                for (const Swatch& swatch : strip->swatches()) texts << swatch.text;
        return texts;
    }
    void choose(int mode) {
        child<QComboBox>("mode").setCurrentIndex(mode);
        ASSERT_TRUE(idle());
        ViewTest::canvas().replot();
    }
    const QString whole = QStringLiteral("step, stages not known");
};

TEST_F(UnknownStages, AStepOfTheBreakdownIsOnePart) {
    open(foreign("foreign.kvtrace"));
    ViewTest::show("breakdown");
    EXPECT_EQ(legend(), QStringList{whole});
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("a step is drawn whole"))) << plot().noteText().toStdString();
    TraceReader reader(workspace.current()->key.path.toStdString());
    const StepRow step = reader.steps(1, 3, 3).at(0);
    EXPECT_EQ(colourAt(3, double(step.durationNs) / 2), Theme::light().component.back());
    for (const QString& line : view->exportCsv().split(QLatin1Char('\n'), Qt::SkipEmptyParts))
        if (line.section(QLatin1Char(','), 1, 1) == QStringLiteral("3")) {
            EXPECT_TRUE(line.endsWith(QStringLiteral(",3") + QStringLiteral(",0").repeated(13) +
                                      QStringLiteral(",%1").arg(step.durationNs)))
                << line.toStdString();
        }
    choose(2); // of the whole run
    EXPECT_EQ(legend(), QStringList{whole});
    choose(1); // by layer
    EXPECT_TRUE(plot().emptyText().contains(QStringLiteral("The times of the layers are not known")))
        << plot().emptyText().toStdString();
}

TEST_F(UnknownStages, TheInspectorSaysNothingOfWhatAnotherEngineLeftOut) {
    const QString path = foreign("foreign.kvtrace");
    test::sql(path.toStdString(), "UPDATE run SET method = 'theirs', query_heads = 0, head_dim = 0, budget_blocks = 0",
              SQLITE_OPEN_READWRITE);
    open(path);
    Inspector inspector(workspace);
    inspector.show();
    ASSERT_TRUE(idle());
    QStringList shown;
    for (const QLabel* label : inspector.findChildren<QLabel*>())
        if (label->isVisibleTo(&inspector)) shown << label->text();
    const QString all = shown.join(QLatin1Char('\n'));
    EXPECT_TRUE(all.contains(QStringLiteral("KV heads"))) << all.toStdString();
    for (const char* words : {"query heads", "KV heads ×", "all blocks"})
        EXPECT_FALSE(all.contains(QString::fromUtf8(words))) << words << " in\n" << all.toStdString();
}

TEST_F(UnknownStages, BesideARunThatKnowsThemTheLegendSaysWhoseStepsAreWhole) {
    open(recorded("own.kvtrace", {.layers = kLayers, .decodeSteps = kSteps}));
    const RunKey own = workspace.current()->key;
    open(foreign("foreign.kvtrace"));
    const RunKey other = workspace.current()->key;
    workspace.setCurrent(own);
    workspace.setCompared(other, true);
    ASSERT_TRUE(idle());
    ViewTest::show("breakdown");
    EXPECT_TRUE(legend().contains(QStringLiteral("other (B: whole step, stages not known)")))
        << legend().join(QStringLiteral(" | ")).toStdString();
    EXPECT_TRUE(legend().contains(QStringLiteral("ffn")));
}

TEST_F(UnknownStages, ATimelineHasTheStepsAlone) {
    open(foreign("foreign.kvtrace"));
    show();
    const Numbered<std::string>& names = index().names();
    for (const char* none : {"attention", "layer", "embed", "lm_head"})
        EXPECT_EQ(std::ranges::find(names, std::string(none)), names.end()) << none;
    EXPECT_NE(std::ranges::find(names, std::string("decode")), names.end());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
