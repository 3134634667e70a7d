// The Compare view while one of its runs is being recorded: with the steps so far, and with all of them at the end.
#include "tests/ui/view_fixture.h"

#include "profiler/compare/compare.h"

#include <QLabel>
#include <QTabBar>
#include <QTableWidget>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

enum Page { Summary, Difference, Breakdown, Overlap, Divergence };

class CompareLive : public ViewTest {
protected:
    CompareLive() {
        open(recorded("b.kvtrace", {.decodeSteps = 100, .window = 4, .seed = 4}));
        other = workspace.current()->key;
        recorder = std::make_unique<Recorder>(
            file("live.kvtrace").toStdString(),
            RecorderOptions{.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
        recorder->beginRun(synthetic::infoOf(shape));
        recorder->flush();
        workspace.addLive({file("live.kvtrace"), recorder->runId()});
        workspace.setCompare(other);
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == "compare") view.reset(entry.make(workspace, nullptr));
        view->resize(1200, 800);
        view->show();
    }
    void record(int steps) {
        generator.recordNext(*recorder, steps);
        recorder->flush();
    }
    void end() {
        recorder->endRun(RunStatus::Finished, "");
        recorder->flush();
        workspace.finishLive(workspace.current()->key);
    }
    void page(Page wanted) { child<QTabBar>("comparePages").setCurrentIndex(wanted); }
    bool says(const char* label, const QString& text) {
        return waitFor([&] { return child<QLabel>(label).isVisible() && child<QLabel>(label).text().contains(text); });
    }
    QString emptyNow() { return plot().emptyText(); }
    /// What the library says of the two files as they are.
    QString sentenceNow() const {
        const RunSample a = loadRunSample(TraceReader(file("live.kvtrace").toStdString()), 1),
                        b = loadRunSample(TraceReader(other.path.toStdString()), 1);
        return QString::fromStdString(compareRuns(std::span(&a, 1), std::span(&b, 1)).sentence);
    }

    const RunShape shape{.decodeSteps = 90};
    synthetic::RunGenerator generator{shape};
    std::unique_ptr<Recorder> recorder;
    RunKey other;
};

TEST_F(CompareLive, WaitsForTheFirstStepInsteadOfRefusing) {
    for (const Page each : {Summary, Difference, Breakdown, Overlap}) {
        page(each);
        EXPECT_TRUE(waitFor([&] { return workspace.idle() && workspace.current()->row.layers > 0; }));
        EXPECT_FALSE(emptyNow().contains(QStringLiteral("cannot be laid"))) << each << emptyNow().toStdString();
        EXPECT_FALSE(emptyNow().contains(QStringLiteral("not comparable"))) << each << emptyNow().toStdString();
    }
    page(Difference);
    EXPECT_TRUE(waitFor([&] { return emptyNow().contains(QStringLiteral("A has no decode step yet")); }))
        << emptyNow().toStdString();
    page(Divergence);
    EXPECT_TRUE(says("firstSelection", QStringLiteral("Waiting for the first decode step")));
    page(Overlap);
    record(31);
    EXPECT_TRUE(waitFor([&] { return emptyNow().isEmpty() && view->exportCsv().count(QLatin1Char('\n')) > 30; }))
        << emptyNow().toStdString();
    page(Difference);
    EXPECT_TRUE(waitFor([&] { return emptyNow().isEmpty() && view->exportCsv().count(QLatin1Char('\n')) == 31; }))
        << emptyNow().toStdString();
    EXPECT_TRUE(waitFor([&] { return plot().noteText().contains(QStringLiteral("So far: 30 decode steps of A")); }))
        << plot().noteText().toStdString();
}

TEST_F(CompareLive, GivesTheVerdictSoFarAndThenTheLastOne) {
    record(11);
    ASSERT_TRUE(says("verdict", QStringLiteral("So far: 10 decode steps of A, still recording.")));
    // Of the ten the first is cold, and one opens a block in both.
    EXPECT_TRUE(says("verdict", QStringLiteral("No verdict on B yet: 8 decode steps are common, a verdict needs 20.")))
        << child<QLabel>("verdict").text().toStdString();
    record(50);
    ASSERT_TRUE(says("verdict", QStringLiteral("So far: 60 decode steps of A, still recording.")));
    EXPECT_TRUE(says("verdict", sentenceNow())) << child<QLabel>("verdict").text().toStdString();
    EXPECT_FALSE(child<QLabel>("verdict").text().contains(QStringLiteral("reservation")))
        << "that it is still recording was said";
    auto& table = child<QTableWidget>("keyNumbers");
    const auto steps = [&] {
        for (int row = 0; row < table.rowCount(); ++row)
            if (table.item(row, 0)->text() == QLatin1String("Decode steps")) return table.item(row, 1)->text();
        return QString();
    };
    EXPECT_TRUE(waitFor([&] { return steps() == QLatin1String("60 steps"); })) << steps().toStdString();
    record(30);
    end();
    ASSERT_TRUE(waitFor([&] { return !child<QLabel>("verdict").text().contains(QStringLiteral("So far")); }));
    EXPECT_TRUE(says("verdict", sentenceNow())) << child<QLabel>("verdict").text().toStdString();
    EXPECT_TRUE(waitFor([&] { return steps() == QLatin1String("90 steps"); })) << steps().toStdString();
}

TEST_F(CompareLive, BreaksTheTimeDownSoFar) {
    page(Breakdown);
    record(6);
    EXPECT_TRUE(waitFor([&] { return emptyNow().contains(QStringLiteral("a verdict needs 20")); }))
        << emptyNow().toStdString();
    record(45);
    auto& table = child<QTableWidget>("breakdownDeltas");
    ASSERT_TRUE(waitFor([&] { return table.isVisible(); })) << emptyNow().toStdString();
    EXPECT_TRUE(waitFor([&] { return plot().noteText().contains(QStringLiteral("So far: 50 decode steps of A")); }))
        << plot().noteText().toStdString();
    record(40);
    end();
    EXPECT_TRUE(waitFor([&] { return !plot().noteText().contains(QStringLiteral("So far")); }));
    const RunSample a = loadRunSample(TraceReader(file("live.kvtrace").toStdString()), 1),
                    b = loadRunSample(TraceReader(other.path.toStdString()), 1);
    const Comparison all = compareRuns(std::span(&a, 1), std::span(&b, 1));
    const QString wanted = QStringLiteral("(%1)").arg(all.steps);
    EXPECT_TRUE(waitFor([&] { return plot().noteText().contains(wanted); })) << plot().noteText().toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
