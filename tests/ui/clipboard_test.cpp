#include "tests/ui/view_fixture.h"

#include "profiler/sqlite/sqlite.h"
#include "ui/frame/clipboard.h"

#include <QAction>
#include <QClipboard>
#include <QComboBox>
#include <QTableWidget>

#include <cmath>
#include <map>
#include <sqlite3.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

TEST(Clipboard, CsvBecomesATableWithTabs) {
    EXPECT_EQ(tableFromCsv("a,b\n1,2\n"), "a\tb\n1\t2\n");
    EXPECT_EQ(tableFromCsv("\"x, y\",\"say \"\"no\"\"\"\n"), "x, y\tsay \"no\"\n");
    EXPECT_EQ(tableFromCsv("\"two\nlines\tand a tab\",3"), "two lines and a tab\t3\n");
    EXPECT_EQ(tableFromCsv("1,\n,2\n"), "1\t\n\t2\n");
    EXPECT_EQ(tableFromCsv(""), "");
}

TEST(Clipboard, TablesCopyWhatIsShownInItsOrder) {
    QTableWidget table(3, 3);
    table.setHorizontalHeaderLabels({"Name", "Secret", "Time"});
    for (int row = 0; row < 3; ++row)
        for (int column = 0; column < 3; ++column)
            table.setItem(row, column, new QTableWidgetItem(QStringLiteral("%1.%2").arg(row).arg(column)));
    table.setColumnHidden(1, true);
    table.setRowHidden(1, true);
    EXPECT_EQ(tableText(table, false), "Name\tTime\n0.0\t0.2\n2.0\t2.2\n");
    table.item(2, 0)->setSelected(true);
    EXPECT_EQ(tableText(table, true), "Name\tTime\n2.0\t2.2\n");
    giveTableMenu(table);
    ASSERT_EQ(table.actions().size(), 2);
    table.show();
    table.activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(&table));
    table.setFocus();
    QTest::keyClick(&table, Qt::Key_C, Qt::ControlModifier);
    EXPECT_EQ(QApplication::clipboard()->text(), "Name\tTime\n2.0\t2.2\n");
    table.actions().at(1)->trigger();
    EXPECT_EQ(QApplication::clipboard()->text(), "Name\tTime\n0.0\t0.2\n2.0\t2.2\n");
    giveTableMenu(table); // its menu is its own now
    EXPECT_EQ(table.actions().size(), 2);
}

class ShownSqlTest : public ViewTest {
protected:
    /// Runs the statement on the file as any other program would.
    std::vector<std::map<std::string, double>> rows(const QString& sql) {
        Connection connection(workspace.current()->key.path.toStdString(), Connection::Mode::ReadOnly);
        sqlite3_db_config(connection.handle(), SQLITE_DBCONFIG_ENABLE_VIEW, 1, nullptr);
        Statement statement(connection, sql.toStdString());
        std::vector<std::map<std::string, double>> result;
        while (statement.step()) {
            auto& row = result.emplace_back();
            for (int column = 0; column < statement.columns(); ++column)
                row[statement.columnName(column)] = statement.isNull(column) ? std::nan("") : statement.real(column);
        }
        return result;
    }
    static QStringList lines(const QString& csv) { return csv.split(QLatin1Char('\n'), Qt::SkipEmptyParts); }
};

TEST_F(ShownSqlTest, LocalityGivesTheCellsOfEveryMetric) {
    open(recorded("a.kvtrace", {.kvHeads = 3, .sequences = 2, .oracle = true}));
    show("locality");
    for (const int rowsShown : {0, 1, 2}) {
        child<QComboBox>("rows").setCurrentIndex(rowsShown);
        for (int metric = 0; metric < child<QComboBox>("metric").count(); ++metric) {
            child<QComboBox>("metric").setCurrentIndex(metric);
            ASSERT_TRUE(idle());
            SCOPED_TRACE(child<QComboBox>("metric").currentText().toStdString() + ", rows " +
                         std::to_string(rowsShown));
            const auto found = rows(plot().sql());
            const QStringList csv = lines(view->exportCsv());
            std::map<std::pair<int, int>, double> shown;
            for (int line = 1; line < csv.size(); ++line) {
                const QStringList cells = csv[line].split(QLatin1Char(','));
                for (int row = 1; row < cells.size(); ++row)
                    if (!cells[row].isEmpty()) shown[{cells[0].toInt(), row - 1}] = cells[row].toDouble();
            }
            std::size_t compared = 0;
            for (const auto& row : found) {
                double value = std::nan("");
                for (const auto& [name, number] : row)
                    if (name != "step" && name != "layer" && name != "seq" && name != "kv_head") value = number;
                if (std::isnan(value)) continue;
                const int line = rowsShown == 2 ? int(row.at("seq") * 3 + row.at("kv_head")) : int(row.at("layer"));
                const auto cell = shown.find({int(row.at("step")), line});
                if (cell == shown.end()) continue; // counted below
                // The view's metrics with time are in µs and bytes as they are; exportCsv is in the axis's unit.
                const double factor = child<QComboBox>("metric").currentText().contains("time") ? 1e3 : 1;
                EXPECT_NEAR(cell->second, value * factor, 1e-4 * std::max(1.0, std::abs(value * factor)));
                ++compared;
            }
            EXPECT_EQ(compared, shown.size());
        }
    }
}

TEST_F(ShownSqlTest, TransfersGivesTheSameNumbersAsTheExport) {
    open(recorded("a.kvtrace", {}));
    show("transfers");
    canvas().zoomTo({4.6, 9.4});
    const auto found = rows(plot().sql());
    const QStringList csv = lines(view->exportCsv());
    ASSERT_EQ(found.size(), 5U) << "the steps in sight";
    ASSERT_EQ(csv.size(), 6);
    for (int i = 0; i < 5; ++i) {
        const QStringList cells = csv[i + 1].split(QLatin1Char(','));
        const char* names[] = {"step", "hits", "misses", "h2d_bytes", "d2h_bytes", "transfer_ns", "exposed_ns"};
        for (int column = 0; column < 7; ++column)
            EXPECT_EQ(cells[column + 1].toDouble(), found[std::size_t(i)].at(names[column])) << names[column];
    }
}

TEST_F(ShownSqlTest, EveryStatementRunsOnTheDocumentedViews) {
    open(recorded("a.kvtrace", {}));
    for (const char* id : {"selection", "breakdown", "insights"}) {
        show(id);
        ASSERT_TRUE(idle());
        const QString statement = plot().sql();
        ASSERT_FALSE(statement.isEmpty()) << id;
        EXPECT_FALSE(rows(statement).empty()) << id;
        EXPECT_TRUE(statement.contains("FROM v_")) << "docs/trace-format.md promises these";
    }
}

TEST_F(ShownSqlTest, ABlockSelectionHasTheViewsCounts) {
    open(recorded("a.kvtrace", {}));
    workspace.setCursor({.step = 3, .layer = 2, .kvHead = 1});
    show("selection");
    const auto found = rows(plot().sql());
    TraceReader reader(workspace.current()->key.path.toStdString());
    const auto expected = reader.selections(workspace.current()->key.runId, 2, 0, 1);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].at("step"), expected[i].step);
        EXPECT_EQ(found[i].at("misses"), expected[i].misses);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
