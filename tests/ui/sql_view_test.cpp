// The SQL page as a person uses it.
#include "tests/ui/view_fixture.h"

#include "profiler/export/gzip_stream.h"
#include "profiler/import/byte_source.h"
#include "tests/profiler/sql_rows.h"
#include "tests/ui/picture.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/sql_request.h"
#include "ui/models/sql_queries.h"
#include "ui/models/sql_table_model.h"
#include "ui/views/sql/sql_plot.h"
#include "ui/views/sql/sql_runner.h"
#include "ui/views/sql/sql_view.h"
#include "ui/widgets/sql_editor.h"
#include "ui/window/main_window.h"

#include <QAbstractItemView>
#include <QClipboard>
#include <QComboBox>
#include <QCompleter>
#include <QFile>
#include <QFileInfo>
#include <QHeaderView>
#include <QLabel>
#include <QLineEdit>
#include <QPushButton>
#include <QTabWidget>
#include <QTableView>
#include <QToolButton>
#include <QTreeWidget>

#include <cmath>
#include <iterator>
#include <string>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class SqlViewTest : public ViewTest {
protected:
    SqlView& page(const synthetic::RunShape& shape = {}) {
        open(recorded("a.kvtrace", shape));
        return shown();
    }
    SqlView& shown() {
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == "sql") view.reset(entry.make(workspace, nullptr));
        view->resize(1200, 800);
        view->show();
        EXPECT_TRUE(QTest::qWaitForWindowExposed(view.get()));
        EXPECT_TRUE(done());
        return dynamic_cast<SqlView&>(*view);
    }
    bool done() {
        return waitFor([this] { return !dynamic_cast<SqlView&>(*view).busy(); }) &&
               (QCoreApplication::processEvents(), true);
    }
    SqlEditor& editor() { return child<SqlEditor>("sqlEditor"); }
    QTableView& table() { return child<QTableView>("sqlTable"); }
    QString cell(int row, int column) { return table().model()->index(row, column).data().toString(); }
    QString message() {
        return child<InlineMessage>("sqlMessage").isVisible() ? child<InlineMessage>("sqlMessage").text() : QString();
    }
    void ask(const QString& sql) {
        editor().setPlainText(sql);
        QTest::keyClick(&editor(), Qt::Key_Return, Qt::ControlModifier);
        ASSERT_TRUE(done());
    }
    QString a() { return file("a.kvtrace"); }
};

TEST_F(SqlViewTest, BeginsWithAQueryThatShowsSomething) {
    page();
    EXPECT_EQ(table().model()->rowCount(), 20) << "the decode steps";
    EXPECT_TRUE(child<QLabel>("sqlStatus").text().contains(QStringLiteral("20 rows in")));
    EXPECT_EQ(message(), QString());
}

TEST_F(SqlViewTest, SaysThatTheSharedFilterDoesNotApply) {
    page();
    const auto* note = view->findChild<QLabel*>(QStringLiteral("sqlFilterNote"));
    EXPECT_FALSE(note->isVisible());
    Filter filter;
    filter.layers = IndexSet({{1, 2}});
    workspace.setFilter(filter);
    EXPECT_TRUE(note->isVisible());
    EXPECT_TRUE(note->text().startsWith(QStringLiteral("Not filtered here: layers 1-2.")))
        << note->text().toStdString();
    workspace.setFilter({});
    EXPECT_FALSE(note->isVisible());
}

TEST_F(SqlViewTest, EveryExampleRuns) {
    page({.oracle = true});
    auto& saved = child<QComboBox>("sqlQueries");
    ASSERT_GE(saved.count(), 8);
    for (int i = 0; i < saved.count(); ++i) {
        saved.setCurrentIndex(i);
        emit saved.activated(i);
        ASSERT_TRUE(done());
        EXPECT_EQ(message(), QString()) << saved.itemText(i).toStdString();
        EXPECT_GT(table().model()->columnCount(), 1) << saved.itemText(i).toStdString();
    }
}

TEST_F(SqlViewTest, CtrlReturnRunsTheStatementAtTheCursor) {
    page();
    editor().setPlainText(QStringLiteral("SELECT 1 AS one;\nSELECT 2 AS two, 'x' AS x;\n"));
    QTextCursor cursor = editor().textCursor();
    cursor.setPosition(25);
    editor().setTextCursor(cursor);
    QTest::keyClick(&editor(), Qt::Key_Return, Qt::ControlModifier);
    ASSERT_TRUE(done());
    EXPECT_EQ(table().model()->headerData(0, Qt::Horizontal).toString(), QStringLiteral("two"));
    EXPECT_EQ(cell(0, 1), QStringLiteral("x"));
    const auto side = [&](int column) {
        return table().model()->headerData(column, Qt::Horizontal, Qt::TextAlignmentRole).toInt() &
               int(Qt::AlignHorizontal_Mask);
    };
    EXPECT_EQ(side(0), int(Qt::AlignRight)) << "a header stands over its numbers";
    EXPECT_EQ(side(1), int(Qt::AlignLeft));
    cursor.setPosition(0);
    cursor.setPosition(8, QTextCursor::KeepAnchor);
    editor().setTextCursor(cursor); // "SELECT 1"
    QTest::mouseClick(&child<QPushButton>("sqlRun"), Qt::LeftButton);
    ASSERT_TRUE(done());
    EXPECT_EQ(table().model()->headerData(0, Qt::Horizontal).toString(), QStringLiteral("1"));
}

TEST_F(SqlViewTest, ShowsTheSchemaWithDescriptionsAndPutsNamesIntoTheQuery) {
    page();
    auto& schema = child<QTreeWidget>("schema");
    ASSERT_EQ(schema.topLevelItemCount(), 2) << "views, tables";
    const auto steps = schema.findItems(QStringLiteral("v_step"), Qt::MatchExactly | Qt::MatchRecursive);
    ASSERT_EQ(steps.size(), 1);
    EXPECT_TRUE(steps[0]->toolTip(0).contains(QStringLiteral("One row per step")));
    QTreeWidgetItem* exposed = nullptr;
    for (int i = 0; i < steps[0]->childCount(); ++i)
        if (steps[0]->child(i)->text(0) == QLatin1String("exposed_ns")) exposed = steps[0]->child(i);
    ASSERT_TRUE(exposed);
    EXPECT_TRUE(exposed->toolTip(0).contains(QStringLiteral("on the critical path")));
    EXPECT_EQ(exposed->text(1), QStringLiteral("integer"));
    editor().setPlainText(QStringLiteral("SELECT "));
    editor().moveCursor(QTextCursor::End);
    emit schema.itemActivated(exposed, 0);
    EXPECT_EQ(editor().toPlainText(), QStringLiteral("SELECT exposed_ns"));
    child<QLineEdit>("schemaFilter").setText(QStringLiteral("exposed"));
    EXPECT_FALSE(exposed->isHidden());
    EXPECT_TRUE(schema.findItems(QStringLiteral("v_token"), Qt::MatchExactly | Qt::MatchRecursive)[0]->isHidden());
}

TEST_F(SqlViewTest, CompletesNamesOfTheSchema) {
    page();
    editor().setPlainText(QString());
    editor().setFocus();
    QTest::keyClicks(&editor(), QStringLiteral("SELECT dur"));
    QCompleter* completer = editor().completer();
    ASSERT_TRUE(completer->popup()->isVisible());
    EXPECT_EQ(completer->currentCompletion(), QStringLiteral("duration_ns"));
    QTest::keyClick(completer->popup(), Qt::Key_Return);
    EXPECT_EQ(editor().toPlainText(), QStringLiteral("SELECT duration_ns"));
    EXPECT_FALSE(completer->popup()->isVisible());
}

TEST_F(SqlViewTest, SaysWhatIsWrongAndWhere) {
    page();
    ask(QStringLiteral("SELECT step,\n  stepp FROM v_step"));
    EXPECT_TRUE(message().contains(QStringLiteral("no such column: stepp"))) << message().toStdString();
    ASSERT_EQ(editor().extraSelections().size(), 1);
    EXPECT_EQ(editor().extraSelections()[0].cursor.selectedText(), QStringLiteral("stepp"));
    ask(QStringLiteral("DELETE FROM step"));
    EXPECT_TRUE(message().contains(QStringLiteral("only read here"))) << message().toStdString();
    ask(QStringLiteral("SELECT count(*) FROM step"));
    EXPECT_EQ(message(), QString()) << "a new query clears the old trouble";
    EXPECT_EQ(cell(0, 0), QStringLiteral("21")) << "nothing was deleted";
    EXPECT_TRUE(editor().extraSelections().isEmpty());
}

TEST_F(SqlViewTest, StopsAnEndlessQueryAndKeepsTheRowsThatCame) {
    SqlView& sql = page();
    editor().setPlainText(QStringLiteral("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)"
                                         " SELECT i FROM n WHERE i < 3000 OR i < 0"));
    sql.run();
    ASSERT_TRUE(waitFor([&] { return table().model()->rowCount() == 2999; })) << "rows show while the query goes on";
    EXPECT_TRUE(child<QPushButton>("sqlStop").isEnabled());
    QTest::mouseClick(&child<QPushButton>("sqlStop"), Qt::LeftButton);
    EXPECT_FALSE(sql.busy());
    EXPECT_TRUE(message().contains(QStringLiteral("Stopped after"))) << message().toStdString();
    EXPECT_EQ(table().model()->rowCount(), 2999);
    ask(QStringLiteral("SELECT 5"));
    EXPECT_EQ(cell(0, 0), QStringLiteral("5")) << "and the page goes on";
}

TEST_F(SqlViewTest, BoundsWhatItFetchesAndSaysSo) {
    SqlView& sql = page();
    sql.setLimits({.rows = 5000});
    ask(QStringLiteral("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"));
    EXPECT_EQ(table().model()->rowCount(), 5000);
    EXPECT_TRUE(message().contains(QStringLiteral("first 5,000 rows"))) << message().toStdString();
}

TEST_F(SqlViewTest, SortsByAClickOnAColumn) {
    page();
    ask(QStringLiteral("SELECT step, misses FROM v_step WHERE run_id = :run_id ORDER BY step"));
    const auto expected = test::sql(a().toStdString(), "SELECT step FROM v_step ORDER BY misses, step").rows;
    emit table().horizontalHeader()->sectionClicked(1);
    ASSERT_TRUE(done());
    for (int row = 0; row < 21; ++row) EXPECT_EQ(cell(row, 0).toStdString(), expected[std::size_t(row)][0]);
    emit table().horizontalHeader()->sectionClicked(1);
    ASSERT_TRUE(done());
    EXPECT_EQ(cell(0, 1).toStdString(), test::value(a().toStdString(), "SELECT max(misses) FROM v_step"));
    EXPECT_EQ(table().horizontalHeader()->sortIndicatorOrder(), Qt::DescendingOrder);
}

TEST_F(SqlViewTest, CopiesTheSelectionForASpreadsheet) {
    page();
    ask(QStringLiteral("SELECT 1 AS a, 'x\ty' AS b, NULL AS c UNION ALL SELECT 2, 'z', 0.5"));
    table().selectAll();
    table().setFocus();
    QTest::keyClick(&table(), Qt::Key_C, Qt::ControlModifier);
    EXPECT_EQ(QApplication::clipboard()->text(), QStringLiteral("1\tx y\t\n2\tz\t0.5\n"));
    auto* model = qobject_cast<SqlTableModel*>(table().model());
    EXPECT_EQ(model->tabSeparated(table().selectionModel()->selection(), true),
              QStringLiteral("a\tb\tc\n1\tx y\t\n2\tz\t0.5\n"));
    EXPECT_EQ(view->exportCsv(), QStringLiteral("a,b,c\n1,x\ty,\n2,z,0.5\n"));
}

TEST_F(SqlViewTest, ARowMovesTheSharedCursorAndTheCursorFillsParameters) {
    page();
    ask(QStringLiteral("SELECT step, layer, kv_head FROM v_locality WHERE step = 6 AND layer = 2 ORDER BY kv_head"));
    table().selectionModel()->setCurrentIndex(table().model()->index(1, 0), QItemSelectionModel::SelectCurrent);
    EXPECT_EQ(workspace.cursor().step, 6);
    EXPECT_EQ(workspace.cursor().layer, 2);
    EXPECT_EQ(workspace.cursor().kvHead, 1);
    ask(QStringLiteral("SELECT :step, :layer, :kv_head, :run_id, :first_step, :last_step"));
    QStringList values;
    for (int i = 0; i < 6; ++i) values << cell(0, i);
    EXPECT_EQ(values.join(QLatin1Char(' ')), QStringLiteral("6 2 1 1 0 20"));
}

TEST_F(SqlViewTest, PlotsColumnsOfNumbers) {
    page();
    ask(QStringLiteral("SELECT step, misses, hits, phase FROM v_step WHERE step > 0 ORDER BY step"));
    child<QTabWidget>("sqlResults").setCurrentIndex(1);
    auto* plot = view->findChild<SqlPlot*>();
    EXPECT_EQ(plot->drawn(), QStringList{QStringLiteral("misses")}) << "the first numbers beside x";
    plot->setDrawn({QStringLiteral("misses"), QStringLiteral("hits")});
    ASSERT_EQ(plot->canvas().plottableCount(), 2);
    auto* graph = qobject_cast<QCPGraph*>(plot->canvas().plottable(1));
    const TraceReader reader(a().toStdString());
    ASSERT_EQ(graph->data()->size(), 20);
    EXPECT_EQ(graph->data()->at(6)->key, 7);
    EXPECT_EQ(graph->data()->at(6)->value, double(reader.steps(1)[7].hits));
    child<QComboBox>("sqlKind").setCurrentIndex(1);
    EXPECT_TRUE(qobject_cast<QCPBars*>(plot->canvas().plottable(0)));
    child<QComboBox>("sqlKind").setCurrentIndex(2);
    EXPECT_EQ(qobject_cast<QCPGraph*>(plot->canvas().plottable(0))->lineStyle(), QCPGraph::lsNone);
    ASSERT_TRUE(view->exportImage(file("plot.svg"), {800, 500}));
    QFile svg(file("plot.svg"));
    ASSERT_TRUE(svg.open(QIODevice::ReadOnly));
    EXPECT_TRUE(svg.readAll().contains("misses"));
    // Names along x, and a column of text is not drawn.
    ask(QStringLiteral("SELECT component, sum(total_ns) / 1e6 AS ms FROM v_breakdown GROUP BY component"));
    EXPECT_EQ(plot->drawn(), QStringList{QStringLiteral("ms")});
    ask(QStringLiteral("SELECT phase, 'x' AS name FROM v_step LIMIT 1"));
    EXPECT_EQ(plot->drawn(), QStringList());
}

TEST_F(SqlViewTest, KeepsQueriesUnderANameForTheNextStart) {
    page();
    editor().setPlainText(QStringLiteral("SELECT 42 AS answer"));
    QTest::mouseClick(&child<QToolButton>("sqlSave"), Qt::LeftButton);
    auto& name = child<QLineEdit>("sqlName");
    ASSERT_TRUE(name.isVisible());
    QTest::keyClicks(&name, QStringLiteral("Runs of this file"));
    QTest::keyClick(&name, Qt::Key_Return);
    EXPECT_TRUE(message().contains(QStringLiteral("comes with the program"))) << message().toStdString();
    name.selectAll();
    QTest::keyClicks(&name, QStringLiteral("My answer"));
    QTest::keyClick(&name, Qt::Key_Return);
    EXPECT_FALSE(name.isVisible());
    EXPECT_EQ(child<QComboBox>("sqlQueries").currentText(), QStringLiteral("My answer"));
    shown(); // another start
    auto& saved = child<QComboBox>("sqlQueries");
    const int index = saved.findText(QStringLiteral("My answer"));
    ASSERT_GE(index, 0);
    saved.setCurrentIndex(index);
    emit saved.activated(index);
    ASSERT_TRUE(done());
    EXPECT_EQ(cell(0, 0), QStringLiteral("42"));
    QTest::mouseClick(&child<QToolButton>("sqlRemove"), Qt::LeftButton);
    EXPECT_EQ(saved.findText(QStringLiteral("My answer")), -1);
    EXPECT_EQ(SqlQueries().all().size(), std::size_t(saved.count()));
}

TEST_F(SqlViewTest, TeachesWithoutARun) {
    shown();
    EXPECT_TRUE(child<QLabel>("sqlStatus").text().contains(QStringLiteral("No run is open")));
    EXPECT_FALSE(child<QPushButton>("sqlRun").isEnabled());
    QTest::keyClick(&editor(), Qt::Key_Return, Qt::ControlModifier);
    EXPECT_TRUE(message().contains(QStringLiteral("Open a trace")));
}

TEST_F(SqlViewTest, FollowsTheShownRunToAnotherFile) {
    page();
    open(recorded("b.kvtrace", {.decodeSteps = 7}));
    ASSERT_TRUE(done());
    ask(QStringLiteral("SELECT max(step) FROM v_step"));
    EXPECT_EQ(cell(0, 0), QStringLiteral("7"));
    EXPECT_TRUE(child<QLabel>("sqlStatus").text().contains(QStringLiteral("b.kvtrace")));
}

TEST_F(SqlViewTest, PicturesInBothThemes) {
    page({.decodeSteps = 60});
    for (const Theme* theme : {&Theme::light(), &Theme::dark()}) {
        Theme::apply(*qApp, *theme);
        view->applyTheme(*theme);
        child<QTabWidget>("sqlResults").setCurrentIndex(0);
        QCoreApplication::processEvents();
        expectPicture(view->grab().toImage(), QStringLiteral("sql-table-%1").arg(theme->id));
        const QString picture = file("picture.png");
        ASSERT_TRUE(view->exportImage(picture, {1000, 640}));
        expectPicture(QImage(picture), QStringLiteral("sql-plot-%1").arg(theme->id));
    }
    Theme::apply(*qApp, Theme::light());
}

TEST_F(SqlViewTest, ClosesWhileAQueryRuns) {
    SqlView& sql = page();
    editor().setPlainText(
        QStringLiteral("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"));
    sql.run();
    EXPECT_TRUE(sql.busy());
    view.reset(); // joins its thread
    SUCCEED();
}

TEST(SqlRunner, WritesEveryRowToAFileBeyondTheLimitsOfTheTable) {
    const test::Folder folder;
    synthetic::recordFile(folder / "a.kvtrace", {});
    SqlRunner runner;
    runner.setFile(QString::fromStdString((folder / "a.kvtrace").string()));
    ASSERT_TRUE(waitFor([&] { return !runner.busy(); }));
    qint64 rows = 0;
    QString failure;
    QObject::connect(&runner, &SqlRunner::exported, [&](const QString&, qint64 count) { rows = count; });
    QObject::connect(&runner, &SqlRunner::failed, [&](const QString& sentence, int) { failure = sentence; });
    const QString sql =
        QStringLiteral("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 150000)"
                       " SELECT i FROM n");
    const QString out = QString::fromStdString((folder / "out.csv").string());
    runner.exportCsv(sql, {}, out);
    ASSERT_TRUE(waitFor([&] { return !runner.busy(); }));
    EXPECT_EQ(rows, 150'000);
    QFile csv(out);
    ASSERT_TRUE(csv.open(QIODevice::ReadOnly));
    csv.seek(csv.size() - 7);
    EXPECT_EQ(csv.readAll(), "150000\n");
    runner.exportCsv(sql, {}, QString::fromStdString((folder / "no" / "out.csv").string()));
    ASSERT_TRUE(waitFor([&] { return !runner.busy(); }));
    EXPECT_TRUE(failure.startsWith(QStringLiteral("cannot write ")) && failure.contains(QStringLiteral("no/out.csv")))
        << failure.toStdString();
    if (GzipStream::isAvailable()) {
        runner.exportCsv(sql, {}, out + QStringLiteral(".gz"));
        ASSERT_TRUE(waitFor([&] { return !runner.busy(); }));
        csv.seek(0);
        ByteSource packed((out + QStringLiteral(".gz")).toStdString(), {}, {}); // unpacks what is gzip
        const std::string unpacked{std::istreambuf_iterator<char>(&packed), {}};
        EXPECT_LT(QFileInfo(out + QStringLiteral(".gz")).size(), csv.size() / 2);
        EXPECT_EQ(unpacked, csv.readAll().toStdString());
    }
    // A stopped export leaves no half file.
    const QString stopped = QString::fromStdString((folder / "stopped.csv").string());
    runner.exportCsv(
        QStringLiteral("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"), {},
        stopped);
    QTest::qWait(50);
    runner.stop();
    EXPECT_FALSE(runner.busy());
    runner.run(QStringLiteral("SELECT 1"), {});
    ASSERT_TRUE(waitFor([&] { return !runner.busy(); }));
    EXPECT_FALSE(QFile::exists(stopped));
}

TEST_F(SqlViewTest, AnyPartOfTheWindowCanOpenAQuery) {
    recorded("a.kvtrace", {});
    MainWindow window(Settings(true));
    window.resize(1200, 800);
    window.show();
    window.openFiles({a()});
    ASSERT_TRUE(waitFor([&] { return window.workspace().current() && window.workspace().idle(); }));
    window.showView(QStringLiteral("locality"));
    ASSERT_TRUE(openInSql(*window.currentView(), QStringLiteral("SELECT 7 AS seven")));
    auto* sql = dynamic_cast<SqlView*>(window.currentView());
    ASSERT_TRUE(sql);
    auto* rows = sql->findChild<QTableView*>(QStringLiteral("sqlTable"));
    ASSERT_TRUE(waitFor([&] { return !sql->busy() && rows->model()->rowCount() == 1; }));
    EXPECT_EQ(rows->model()->headerData(0, Qt::Horizontal).toString(), QStringLiteral("seven"));
    EXPECT_EQ(rows->model()->index(0, 0).data().toString(), QStringLiteral("7"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
