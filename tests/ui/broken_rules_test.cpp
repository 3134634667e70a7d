// Rows that break rules of the trace format: the window counts and lists them, and shows no number that means nothing.
#include "tests/ui/window_fixture.h"

#include "profiler/check/check.h"
#include "tests/profiler/sql_rows.h"
#include "ui/frame/run_checks.h"
#include "ui/models/run_list_model.h"
#include "ui/widgets/check_dialog.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/run_list.h"

#include <QLabel>
#include <QListView>
#include <QMenu>
#include <QTableWidget>
#include <QToolButton>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class BrokenRules : public WindowTest {
protected:
    QString trace(const QString& name, const char* edit) {
        const QString path = folder.filePath(name);
        recordSmallTrace(path, {.name = "NOSA <b>on</b> a model"});
        test::sql(path.toStdString(), edit, SQLITE_OPEN_READWRITE);
        return path;
    }
    static void open(MainWindow& window, const QString& path) {
        window.openFiles({path});
        ASSERT_TRUE(until([&] {
            const OpenRun* run = window.workspace().current();
            return run && run->key.path == path && RunChecks::of(window.workspace()).find(run->key) &&
                   window.workspace().idle();
        }));
    }
    static QToolButton* mark(MainWindow& window) {
        return window.findChild<QToolButton*>(QStringLiteral("brokenRules"));
    }
    static QString number(MainWindow& window, const char* name) {
        return window.findChild<QLabel*>(QLatin1String(name))->text();
    }
    static std::int64_t violations(MainWindow& window) {
        return RunChecks::of(window.workspace()).violations(window.workspace().current()->key);
    }
    static std::int64_t counted(const QString& path) {
        std::int64_t violations = 0;
        for (const RunCheck& check : checkTrace(TraceReader(path.toStdString()))) violations += check.violations();
        return violations;
    }
};

constexpr const char* kBadHits = "UPDATE selection SET hits = hits + 1 WHERE id >> 30 = (1 << 25 | 4)";

TEST_F(BrokenRules, AreNotSpokenOfWhereThereAreNone) {
    const auto window = makeWindow();
    open(*window, trace("a.kvtrace", "UPDATE run SET status = 'stopped'"));
    EXPECT_EQ(violations(*window), 0);
    EXPECT_FALSE(mark(*window)->isVisible());
    EXPECT_TRUE(until([&] { return number(*window, "hitRate") != QStringLiteral("–"); }));
}

TEST_F(BrokenRules, AreCountedAsTheCommandLineCountsThemAndListed) {
    const QString path = trace("a.kvtrace", kBadHits);
    const auto window = makeWindow();
    open(*window, path);
    const std::int64_t rows = counted(path);
    ASSERT_GT(rows, 3);
    EXPECT_EQ(violations(*window), rows);
    ASSERT_TRUE(mark(*window)->isVisible());
    EXPECT_TRUE(mark(*window)->text().contains(QStringLiteral("%1 rows break rules").arg(rows)))
        << mark(*window)->text().toStdString();
    EXPECT_TRUE(mark(*window)->toolTip().contains(QStringLiteral("hits and misses")));
    auto* list = window->findChild<QListView*>(QStringLiteral("runList"));
    EXPECT_EQ(list->model()->index(0, 0).data(RunListModel::WarningRole).toString(),
              QStringLiteral("%1 rows break rules").arg(rows));

    QTest::mouseClick(mark(*window), Qt::LeftButton);
    auto* dialog = window->findChild<CheckDialog*>();
    ASSERT_NE(dialog, nullptr);
    EXPECT_TRUE(dialog->windowTitle().contains(QStringLiteral("NOSA <b>on</b> a model")));
    auto* table = dialog->findChild<QTableWidget*>(QStringLiteral("violations"));
    EXPECT_EQ(table->rowCount(), rows) << "few enough to be shown one by one";
    bool found = false;
    for (int row = 0; row < table->rowCount(); ++row)
        found = found || (table->item(row, 0)->text().contains(QStringLiteral("step 4, layer 1")) &&
                          table->item(row, 1)->text().startsWith(QStringLiteral("hits + misses is 3, selected is 2")) &&
                          table->item(row, 2)->text().contains(QStringLiteral("hits + misses = selected")));
    EXPECT_TRUE(found);
    dialog->close();
}

TEST_F(BrokenRules, TakeOnlyTheNumbersThatTheyConcern) {
    const auto window = makeWindow();
    open(*window, trace("a.kvtrace", kBadHits));
    EXPECT_EQ(number(*window, "hitRate"), QStringLiteral("–"));
    EXPECT_TRUE(until([&] { return number(*window, "tokenRate") != QStringLiteral("–"); })) << "times are in order";
    const Knowledge knows = window->workspace().current()->row.knows;
    EXPECT_FALSE(knows.has(Known::Hits));
    EXPECT_TRUE(knows.has(Known::Bytes));
    window->workspace().setCursor({.step = 4});
    settle(*window);
    bool refused = false;
    for (const QLabel* label : window->inspector().findChildren<QLabel*>())
        refused = refused || label->text() == QStringLiteral("not known");
    EXPECT_TRUE(refused) << "the inspector";

    open(*window, trace("b.kvtrace", "UPDATE step SET tokens = -944 WHERE id & 0x1FFFFFF = 3"));
    EXPECT_EQ(number(*window, "tokenRate"), QStringLiteral("–"));
    EXPECT_TRUE(until([&] { return number(*window, "hitRate") != QStringLiteral("–"); }));

    open(*window, trace("c.kvtrace", "UPDATE selection SET kept = 5 WHERE kept IS NOT NULL"));
    EXPECT_EQ(number(*window, "locality"), QStringLiteral("–"));
    window->showView(QStringLiteral("insights"));
    settle(*window);
    ASSERT_TRUE(until([&] {
        return window->currentView()->findChild<QLabel*>(QStringLiteral("headline"))->text().startsWith("No statement");
    }));
    const QString csv = window->currentView()->exportCsv();
    EXPECT_TRUE(csv.contains(QStringLiteral("broken-rules"))) << csv.toStdString();
    EXPECT_FALSE(csv.contains(QStringLiteral("\nlayer,"))) << "no bar of numbers that mean nothing";
}

TEST_F(BrokenRules, ComeFromTheMenuOfTheRunToo) {
    const auto window = makeWindow();
    const QString good = trace("a.kvtrace", "SELECT 1"), bad = trace("b.kvtrace", kBadHits);
    open(*window, good);
    open(*window, bad);
    auto* runs = window->findChild<RunList*>();
    const auto entry = [&](const QString& path) -> QAction* {
        for (int row = 0; row < runs->view()->model()->rowCount(); ++row) {
            const QModelIndex index = runs->view()->model()->index(row, 0);
            if (!index.data(Qt::ToolTipRole).toString().contains(QFileInfo(path).fileName())) continue;
            emit runs->view()->customContextMenuRequested(runs->view()->visualRect(index).center());
            QMenu* shown = nullptr;
            for (QMenu* menu : runs->findChildren<QMenu*>(QStringLiteral("runMenu")))
                if (menu->isVisible()) shown = menu;
            if (shown == nullptr) return nullptr;
            for (QAction* action : shown->actions())
                if (action->text() == QStringLiteral("Broken rules…")) return action;
        }
        return nullptr;
    };
    QAction* none = entry(good);
    ASSERT_NE(none, nullptr);
    EXPECT_FALSE(none->isEnabled());
    EXPECT_EQ(none->toolTip(), QStringLiteral("No row breaks a rule of the trace format"));
    static_cast<QMenu*>(none->parent())->close();
    QAction* some = entry(bad);
    ASSERT_NE(some, nullptr);
    ASSERT_TRUE(some->isEnabled());
    some->trigger();
    EXPECT_NE(window->findChild<CheckDialog*>(), nullptr);
}

/// A run is tested when it has ended, not while it grows.
TEST_F(BrokenRules, AreLookedForWhenARunIsOver) {
    const QString path = trace("a.kvtrace", "UPDATE run SET status = 'running'");
    test::sql(path.toStdString(),
              "UPDATE health SET heartbeat_ms = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + 60000",
              SQLITE_OPEN_READWRITE);
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() && window->workspace().idle(); }));
    ASSERT_FALSE(window->workspace().current()->row.stale);
    EXPECT_FALSE(RunChecks::of(window->workspace()).busy());
    EXPECT_EQ(RunChecks::of(window->workspace()).find({path, 1}), nullptr);
    test::sql(path.toStdString(), "UPDATE run SET status = 'finished'", SQLITE_OPEN_READWRITE);
    EXPECT_TRUE(until([&] { return RunChecks::of(window->workspace()).find({path, 1}) != nullptr; }));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
