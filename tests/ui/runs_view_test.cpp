// The table of all open runs: its numbers are those of the summaries, it sorts, filters and remembers its columns, and
// what a person says of a run is written into its trace.
#include "tests/ui/view_fixture.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/run_numbers.h"
#include "tests/profiler/sql_rows.h"
#include "tests/ui/small_trace.h"
#include "ui/frame/remembers.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"
#include "ui/models/runs_table_model.h"
#include "ui/widgets/labels_dialog.h"

#include <QAction>
#include <QClipboard>
#include <QFile>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QTreeView>
#include <fmt/format.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using Column = RunsTableModel::Column;

class RunsTableTest : public ViewTest {
protected:
    QString small(const std::string& name, const SmallTrace& shape = {}) {
        const QString path = file(name);
        recordSmallTrace(path, shape);
        return path;
    }
    static void change(const QString& path, const std::string& sql) {
        test::sql(path.toStdString(), sql, SQLITE_OPEN_READWRITE);
    }
    /// Gives a trace of one run `runs` of them: copies of its rows under other numbers.
    static void copyRun(const QString& path, int runs) {
        using namespace trace;
        const std::pair<const char*, std::int64_t> keyed[] = {{"step", stepKey(1, 0)},
                                                              {"layer_step", layerKey(1, 0, 0)},
                                                              {"selection", selectionKey(1, 0, 0, 0, 0)},
                                                              {"token", tokenKey(1, 0, 0, 0)},
                                                              {"prompt", promptKey(2, 0, 0) - promptKey(1, 0, 0)}};
        std::string statements = "BEGIN;";
        for (const char* table : {"run", "health", "run_meta", "step", "layer_step", "selection", "token", "prompt"})
            statements += fmt::format("CREATE TEMP TABLE c_{0} AS SELECT * FROM main.{0};", table);
        for (int run = 2; run <= runs; ++run) {
            for (const char* table : {"run", "health", "run_meta"})
                statements +=
                    fmt::format("UPDATE c_{0} SET run_id = {1}; INSERT INTO main.{0} SELECT * FROM c_{0};", table, run);
            for (const auto& [table, apart] : keyed)
                statements += fmt::format("UPDATE c_{0} SET id = id + {1}; INSERT INTO main.{0} SELECT * FROM c_{0};",
                                          table, apart);
            statements += fmt::format("UPDATE main.run SET name = name || ' {0}' WHERE run_id = {0};", run);
        }
        change(path, statements + "COMMIT;");
    }
    void showRuns() {
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == "runs") view.reset(entry.make(workspace, nullptr));
        view->resize(1200, 640);
        view->show();
        ASSERT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        view->activateWindow();
        ASSERT_TRUE(idle());
    }
    QTreeView& table() { return child<QTreeView>("runsTable"); }
    QString cell(int row, Column column) { return table().model()->index(row, column).data().toString(); }
    QStringList column(Column column) {
        QStringList texts;
        for (int row = 0; row < table().model()->rowCount(); ++row) texts << cell(row, column);
        return texts;
    }
    void choose(std::initializer_list<int> rows) {
        table().clearSelection();
        for (const int row : rows)
            table().selectionModel()->select(table().model()->index(row, 0),
                                             QItemSelectionModel::Select | QItemSelectionModel::Rows);
        if (rows.size() > 0)
            table().selectionModel()->setCurrentIndex(table().model()->index(*rows.begin(), 0),
                                                      QItemSelectionModel::NoUpdate);
        view->activateWindow();
        table().setFocus();
    }
    QAction& action(const char* name) { return child<QAction>(name); }
    QString count() { return child<QLabel>("runsCount").text(); }
    static RunLabels labelsIn(const QString& path, int run = 1) {
        return kvscope::labelsOf(TraceReader(path.toStdString()).run(run).value());
    }
};

TEST_F(RunsTableTest, ShowsTheNumbersOfEveryRun) {
    const QString a = small("a.kvtrace"),
                  b = small("b.kvtrace", {.missesPerHead = 0, .name = "warm", .stepNs = 2'500'000});
    open(b);
    open(a);
    showRuns();
    ASSERT_EQ(table().model()->rowCount(), 2);
    table().sortByColumn(Column::TokenRate, Qt::DescendingOrder);
    EXPECT_EQ(column(Column::TokenRate), (QStringList{"500", "400"}));
    EXPECT_EQ(column(Column::Run), (QStringList{"NOSA on a test model", "warm"}));
    EXPECT_EQ(column(Column::HitRate), (QStringList{"50 %", "100 %"}));
    EXPECT_EQ(column(Column::BytesPerToken), (QStringList{"128 KiB", "0 B"}));
    EXPECT_EQ(column(Column::Exposed), (QStringList{"2 µs", "0 ns"}));
    EXPECT_EQ(column(Column::DeviceKv), (QStringList{"2048 KiB", "2048 KiB"}));
    EXPECT_EQ(column(Column::Steps), (QStringList{"6", "6"}));
    EXPECT_EQ(column(Column::Budget), (QStringList{"16", "16"}));
    EXPECT_EQ(column(Column::Mark), (QStringList{"A", ""}));
    EXPECT_EQ(count(), QStringLiteral("2 runs"));
    for (const QString& path : {a, b}) { // as every other page of the program has them
        const RunSummary summary = summarize(TraceReader(path.toStdString()), 1);
        EXPECT_TRUE(column(Column::TokenRate).contains(formatRate(summary.tokensPerSecond)));
        EXPECT_TRUE(column(Column::HitRate).contains(formatValue(Unit::Percent, 100 * summary.hitRate)));
    }
    const QString csv = view->exportCsv();
    EXPECT_TRUE(csv.startsWith("run_id,name,mark,method,model,budget_blocks,differs,steps,tokens_per_s,hit_rate"));
    EXPECT_TRUE(csv.contains("\n1,\"NOSA on a test model\",\"A\",\"nosa\"")) << csv.toStdString();
    EXPECT_TRUE(csv.contains(",131072,2000,2097152,")) << csv.toStdString();
}

TEST_F(RunsTableTest, SaysInWhichSettingsRunsDiffer) {
    const QString a = small("a.kvtrace"), b = small("b.kvtrace"), c = small("c.kvtrace");
    change(a, R"(UPDATE run SET params_json = '{"total_blocks":16,"select_blocks":4}')");
    change(b, R"(UPDATE run SET params_json = '{"total_blocks":16,"select_blocks":8}')");
    change(c, R"(UPDATE run SET params_json = '{"total_blocks":16,"select_blocks":4,"seed":7}', device_slots = 24)");
    for (const QString& path : {a, b, c}) open(path);
    showRuns();
    table().sortByColumn(Column::File, Qt::AscendingOrder);
    EXPECT_EQ(column(Column::Differs),
              (QStringList{"4 select blocks, 16 device slots", "8 select blocks, 16 device slots",
                           "4 select blocks, 24 device slots"}));
    // Only one run has a seed: that is no difference between two values.
    workspace.close({c, 1});
    ASSERT_TRUE(idle());
    EXPECT_EQ(column(Column::Differs), (QStringList{"4 select blocks", "8 select blocks"}));
}

TEST_F(RunsTableTest, SortsByNumbersWithPinnedRunsFirstAndUnknownOnesLast) {
    const std::pair<const char*, std::int64_t> runs[] = {
        {"slow", 30'000'000}, {"middle", 8'000'000}, {"fast", 900'000}, {"unknown", 1'000'000}};
    for (const auto& [name, ns] : runs) {
        const QString path = small(std::string(name) + ".kvtrace", {.name = name, .stepNs = ns});
        if (std::string(name) == "unknown")
            change(path, "INSERT OR REPLACE INTO run_meta VALUES (1, 'knows', '" +
                             Knowledge::nothing().with(Known::Hits).toJson() + "')");
        open(path);
    }
    showRuns();
    table().sortByColumn(Column::TokenRate, Qt::AscendingOrder);
    EXPECT_EQ(column(Column::Run), (QStringList{"slow", "middle", "fast", "unknown"}));
    EXPECT_EQ(cell(3, Column::TokenRate), QStringLiteral("–"));
    table().sortByColumn(Column::TokenRate, Qt::DescendingOrder);
    EXPECT_EQ(column(Column::Run), (QStringList{"fast", "middle", "slow", "unknown"}));
    choose({1});
    QTest::keyClick(&table(), Qt::Key_P);
    ASSERT_TRUE(waitFor([&] { return cell(0, Column::Pinned) == QStringLiteral("★"); }));
    EXPECT_EQ(column(Column::Run), (QStringList{"middle", "fast", "slow", "unknown"}));
    table().sortByColumn(Column::TokenRate, Qt::AscendingOrder);
    EXPECT_EQ(column(Column::Run), (QStringList{"middle", "slow", "fast", "unknown"}));
    EXPECT_TRUE(labelsIn(file("middle.kvtrace")).pinned) << "kept in the trace";
    EXPECT_EQ(action("runsPin").text(), QStringLiteral("Unpin"));
    action("runsPin").trigger();
    ASSERT_TRUE(waitFor([&] { return column(Column::Pinned).join(QString()).isEmpty(); }));
    EXPECT_FALSE(labelsIn(file("middle.kvtrace")).pinned);
}

TEST_F(RunsTableTest, FiltersByWordsOfAnyColumnAndSaysSo) {
    open(small("quest.kvtrace", {.name = "first try", .method = "quest"}));
    open(small("nosa.kvtrace", {.name = "second try"}));
    change(file("nosa.kvtrace"), R"(INSERT INTO run_meta VALUES (1, 'labels', '{"note":"with a Cold cache"}'))");
    open(file("nosa.kvtrace"));
    showRuns();
    auto& search = child<QLineEdit>("search");
    for (const auto& [words, left] : {std::pair{"try", 2}, {"QUEST", 1}, {"cold second", 1}, {"cold first", 0}}) {
        search.setText(QString::fromLatin1(words));
        EXPECT_EQ(table().model()->rowCount(), left) << words;
        EXPECT_EQ(search.property("role").toString(), QStringLiteral("active"));
        EXPECT_EQ(count(), left == 2 ? QStringLiteral("2 runs") : QStringLiteral("%1 of 2 runs").arg(left));
    }
    EXPECT_FALSE(table().isVisible()) << "an empty table would look as if nothing were open";
    view->findChild<QPushButton*>(QStringLiteral("emptyAction0"))->click();
    EXPECT_EQ(search.text(), QString());
    EXPECT_EQ(table().model()->rowCount(), 2);
    EXPECT_TRUE(table().isVisible());
    search.setFocus();
    QTest::keyClick(&search, Qt::Key_Down);
    EXPECT_TRUE(table().hasFocus());
}

TEST_F(RunsTableTest, NamesTagsAndNotesAreWrittenIntoTheTraces) {
    const QString a = small("a.kvtrace", {.name = "a"}), b = small("b.kvtrace", {.name = "b"});
    change(a, R"(INSERT INTO run_meta VALUES (1, 'labels', '{"tags":["old","own"]}'))");
    change(b, R"(INSERT INTO run_meta VALUES (1, 'labels', '{"tags":["old"],"note":"only b"}'))");
    open(a);
    open(b);
    Workspace other; // another window on the same trace
    other.open(a);
    ASSERT_TRUE(waitFor([&] { return other.runs().size() == 1; }));
    showRuns();
    table().sortByColumn(Column::Run, Qt::AscendingOrder);
    const auto dialog = [&] {
        auto* found = view->findChild<LabelsDialog*>();
        if (!found) throw std::runtime_error("no dialog");
        return found;
    };
    choose({0});
    QTest::keyClick(&table(), Qt::Key_F2);
    EXPECT_EQ(dialog()->findChild<QLineEdit*>("labelName")->text(), QStringLiteral("a"));
    EXPECT_EQ(dialog()->findChild<QLineEdit*>("labelTags")->text(), QStringLiteral("old, own"));
    dialog()->findChild<QLineEdit*>("labelName")->setText(QStringLiteral("baseline"));
    dialog()->findChild<QPushButton*>("labelsSave")->click();
    ASSERT_TRUE(waitFor([&] { return cell(0, Column::Run) == QStringLiteral("b"); })) << "sorted anew: b, baseline";
    EXPECT_EQ(cell(1, Column::Run), QStringLiteral("baseline"));
    EXPECT_EQ(labelsIn(a).name, "baseline");
    EXPECT_EQ(labelsIn(a).tags, (std::vector<std::string>{"old", "own"}));
    EXPECT_EQ(runName(*workspace.find({a, 1}), workspace.runs()), QStringLiteral("baseline")) << "everywhere";
    EXPECT_TRUE(waitFor([&] { return other.runs().front().row.name == "baseline"; })) << "in every window";

    ASSERT_TRUE(waitFor([&] { return view->findChild<LabelsDialog*>() == nullptr; }));
    choose({0, 1});
    EXPECT_FALSE(action("runsRename").isEnabled()) << "two runs do not get the same name";
    action("runsTags").trigger();
    EXPECT_EQ(dialog()->findChild<QLineEdit*>("labelTags")->text(), QStringLiteral("old")) << "what both have";
    dialog()->findChild<QLineEdit*>("labelTags")->setText(QStringLiteral("new, seed 7 ,new"));
    dialog()->findChild<QPushButton*>("labelsSave")->click();
    ASSERT_TRUE(waitFor([&] {
        return column(Column::Tags) == QStringList{"new, seed 7", "new, own, seed 7"};
    })) << column(Column::Tags).join('|').toStdString();
    EXPECT_EQ(labelsIn(b).note, "only b") << "a note that nobody changed stays";
    EXPECT_EQ(labelsIn(a).tags, (std::vector<std::string>{"new", "own", "seed 7"}));
}

TEST_F(RunsTableTest, SaysWhyLabelsWereNotKept) {
    const QString path = small("a.kvtrace");
    open(path);
    showRuns();
    choose({0});
    action("runsWriteNote").trigger();
    auto* dialog = view->findChild<LabelsDialog*>();
    ASSERT_NE(dialog, nullptr);
    dialog->findChild<QPlainTextEdit*>("labelNote")->setPlainText(QString(70'000, QLatin1Char('x')));
    dialog->findChild<QPushButton*>("labelsSave")->click();
    auto& message = child<InlineMessage>("runsMessage");
    ASSERT_TRUE(waitFor([&] { return message.isVisible(); }));
    EXPECT_TRUE(message.text().contains(QStringLiteral("write a shorter note"))) << message.text().toStdString();
    EXPECT_EQ(labelsIn(path), RunLabels());
}

TEST_F(RunsTableTest, IsWorkedByKeys) {
    for (const char* name : {"a", "b", "c"}) open(small(std::string(name) + ".kvtrace", {.name = name}));
    showRuns();
    table().sortByColumn(Column::Run, Qt::AscendingOrder);
    ASSERT_EQ(workspace.current()->row.name, "c");
    choose({0, 1});
    QTest::keyClick(&table(), Qt::Key_B);
    EXPECT_EQ(column(Column::Mark), (QStringList{"B", "C", "A"}));
    EXPECT_EQ(count(), QStringLiteral("3 runs, 2 chosen"));
    EXPECT_EQ(action("runsMark").text(), QStringLiteral("Take Out of Compare"));
    choose({1});
    QTest::keyClick(&table(), Qt::Key_B);
    EXPECT_EQ(column(Column::Mark), (QStringList{"B", "", "A"}));
    QTest::keyClick(&table(), Qt::Key_Return);
    EXPECT_EQ(workspace.current()->row.name, "b");
    EXPECT_FALSE(action("runsShow").isEnabled()) << "it is shown";
    choose({0});
    QTest::keyClick(&table(), Qt::Key_Down);
    EXPECT_EQ(table().currentIndex().row(), 1);
    QTest::keyClick(&table(), Qt::Key_Delete);
    ASSERT_TRUE(waitFor([&] { return workspace.runs().size() == 2; }));
    EXPECT_EQ(column(Column::Run), (QStringList{"a", "c"}));
    EXPECT_TRUE(QFile::exists(file("b.kvtrace"))) << "the trace stays";
    choose({0});
    QTest::keyClick(&table(), Qt::Key_C, Qt::ControlModifier);
    EXPECT_TRUE(QApplication::clipboard()->text().contains(QStringLiteral("a\t"))); // the chosen row
    EXPECT_FALSE(action("runsAgain").isEnabled());
    EXPECT_EQ(action("runsAgain").toolTip(), QStringLiteral("This window runs no sessions"));
}

TEST_F(RunsTableTest, AClickOnTheMarkComparesARun) {
    open(small("a.kvtrace", {.name = "a"}));
    open(small("b.kvtrace", {.name = "b"}));
    showRuns();
    table().sortByColumn(Column::Run, Qt::AscendingOrder);
    const auto clickMark = [&](int row) {
        const QRect place = table().visualRect(table().model()->index(row, Column::Mark));
        QTest::mouseClick(table().viewport(), Qt::LeftButton, {}, place.center());
    };
    clickMark(0);
    EXPECT_EQ(column(Column::Mark), (QStringList{"B", "A"}));
    clickMark(0);
    EXPECT_EQ(column(Column::Mark), (QStringList{"", "A"}));
    clickMark(1);
    EXPECT_EQ(column(Column::Mark), (QStringList{"", "A"})) << "A is compared with all others";
}

TEST_F(RunsTableTest, KeepsItsColumnsAndColours) {
    open(small("a.kvtrace", {.name = "a"}));
    open(small("b.kvtrace", {.name = "b"}));
    showRuns();
    EXPECT_TRUE(table().isColumnHidden(Column::File));
    table().setColumnHidden(Column::File, false);
    table().setColumnHidden(Column::Model, true);
    table().setColumnWidth(Column::Note, 333);
    table().header()->moveSection(table().header()->visualIndex(Column::HitRate), 1);
    table().sortByColumn(Column::HitRate, Qt::DescendingOrder);
    const QVariantMap state = dynamic_cast<Remembers&>(*view).remembered();
    const auto colours = [&] {
        QStringList all;
        for (const OpenRun& run : workspace.runs()) all << lastingColour(run.key).name();
        return all;
    };
    const QStringList before = colours();
    EXPECT_NE(lastingColour({file("a.kvtrace"), 1}), lastingColour({file("a.kvtrace"), 2})) << "neighbours differ";
    workspace.setCurrent(workspace.runs().front().key);
    EXPECT_EQ(colours(), before) << "whatever is shown";
    showRuns();
    dynamic_cast<Remembers&>(*view).recall(state);
    EXPECT_FALSE(table().isColumnHidden(Column::File));
    EXPECT_TRUE(table().isColumnHidden(Column::Model));
    EXPECT_EQ(table().columnWidth(Column::Note), 333);
    EXPECT_EQ(table().header()->visualIndex(Column::HitRate), 1);
    EXPECT_EQ(table().header()->sortIndicatorSection(), int(Column::HitRate));
    EXPECT_EQ(table().header()->sortIndicatorOrder(), Qt::DescendingOrder);
    for (const QVariantMap& wrong : {QVariantMap{}, QVariantMap{{"columns", "a b"}, {"header", "AAAA"}},
                                     QVariantMap{{"columns", state["columns"]}, {"header", "no state"}}})
        dynamic_cast<Remembers&>(*view).recall(wrong);
    EXPECT_EQ(table().columnWidth(Column::Note), 333);
}

TEST_F(RunsTableTest, TeachesWhereNoRunIsOpen) {
    showRuns();
    EXPECT_FALSE(table().isVisible());
    QStringList said;
    for (const QLabel* label : view->findChildren<QLabel*>())
        if (label->isVisible()) said << label->text();
    EXPECT_TRUE(said.join(' ').contains(QStringLiteral("No run is open"))) << said.join('|').toStdString();
    EXPECT_TRUE(view->exportCsv().isEmpty());
    EXPECT_TRUE(view->exportImage(file("empty.png"), {640, 400}));
    open(small("a.kvtrace"));
    EXPECT_TRUE(table().isVisible());
    EXPECT_EQ(count(), QStringLiteral("1 run"));
}

TEST_F(RunsTableTest, HoldsFiveHundredRuns) {
    constexpr int kEach = 250;
    waitsForChecks = false;
    for (const char* name : {"one", "two"}) {
        const QString path = small(std::string(name) + ".kvtrace", {.decodeSteps = 3, .layers = 1, .name = name});
        copyRun(path, kEach);
        open(path);
    }
    showRuns();
    ASSERT_EQ(table().model()->rowCount(), 2 * kEach);
    EXPECT_EQ(count(), QStringLiteral("500 runs"));
    table().sortByColumn(Column::TokenRate, Qt::AscendingOrder);
    EXPECT_EQ(column(Column::TokenRate).count(QStringLiteral("500")), 2 * kEach);
    child<QLineEdit>("search").setText(QStringLiteral("two 25"));
    EXPECT_EQ(table().model()->rowCount(), 4) << "two 25, 125, 225 and 250";
    child<QLineEdit>("search").clear();
    table().selectAll();
    action("runsMark").trigger();
    EXPECT_EQ(workspace.sides().size(), 1u) << "so many curves tell nobody anything";
    EXPECT_TRUE(child<QWidget>("runsMessage").isVisible());
    EXPECT_TRUE(view->exportImage(file("many.svg"), {900, 600}));
    EXPECT_EQ(view->exportCsv().count('\n'), 2 * kEach + 1);
}

TEST_F(RunsTableTest, FollowsARunThatGrows) {
    synthetic::RunShape shape;
    shape.decodeSteps = 30;
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto next = [&](int steps) {
        generator.recordNext(recorder, steps);
        recorder.flush();
    };
    workspace.addLive({path, recorder.runId()});
    showRuns();
    next(6);
    ASSERT_TRUE(waitFor([&] { return cell(0, Column::Steps) == QStringLiteral("5"); }))
        << cell(0, Column::Steps).toStdString();
    EXPECT_EQ(cell(0, Column::Status), QStringLiteral("live"));
    choose({0});
    EXPECT_FALSE(action("runsClose").isEnabled());
    next(20);
    ASSERT_TRUE(waitFor([&] { return cell(0, Column::Steps) == QStringLiteral("25"); }));
    EXPECT_EQ(table().selectionModel()->selectedRows().size(), 1) << "what was chosen stays chosen";
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    workspace.finishLive(workspace.current()->key);
    ASSERT_TRUE(waitFor([&] { return cell(0, Column::Status) == QStringLiteral("finished"); }));
    const RunSummary summary = summarize(TraceReader(path.toStdString()), 1);
    EXPECT_TRUE(waitFor([&] { return cell(0, Column::TokenRate) == formatRate(summary.tokensPerSecond); }));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
