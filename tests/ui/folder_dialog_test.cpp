// The list of a folder's traces: rows come while files are read, are sorted by number, and open on a double click.
#include "tests/profiler/sql_rows.h"
#include "tests/ui/nameless_controls.h"
#include "tests/ui/window_fixture.h"

#include "ui/widgets/folder_dialog.h"

#include <QFile>
#include <QLabel>
#include <QPushButton>
#include <QSignalSpy>
#include <QTreeView>

namespace kvscope::ui {
namespace {

class FolderDialogTest : public WindowTest {
protected:
    FolderDialogTest() {
        recordSmallTrace(folder.filePath("b.kvtrace"), {.decodeSteps = 9, .name = "<b>nine</b>"});
        recordSmallTrace(folder.filePath("a.kvtrace"), {.decodeSteps = 100, .name = "hundred"});
        QFile bad(folder.filePath("c.kvtrace"));
        EXPECT_TRUE(bad.open(QIODevice::WriteOnly));
        bad.write("no trace");
    }
    static QTreeView& tableOf(FolderDialog& dialog) {
        return *dialog.findChild<QTreeView*>(QStringLiteral("folderTraces"));
    }
    static QString text(FolderDialog& dialog, int row, int column) {
        return tableOf(dialog).model()->index(row, column).data().toString();
    }
    static QStringList files(FolderDialog& dialog) {
        QStringList names;
        for (int row = 0; row < tableOf(dialog).model()->rowCount(); ++row) names << text(dialog, row, 0);
        return names;
    }
};

TEST_F(FolderDialogTest, ListsRunsAndSaysWhyAFileIsUnreadable) {
    auto* dialog = new FolderDialog(folder.path());
    dialog->show();
    ASSERT_TRUE(until([&] { return !dialog->isReading(); }));
    EXPECT_EQ(files(*dialog), (QStringList{"a.kvtrace", "b.kvtrace", "c.kvtrace"}));
    EXPECT_EQ(text(*dialog, 0, 2), "hundred");
    EXPECT_EQ(text(*dialog, 0, 8), "101");
    EXPECT_EQ(text(*dialog, 1, 7), "finished");
    EXPECT_TRUE(text(*dialog, 2, 7).contains("not a KVScope trace"));
    EXPECT_EQ(dialog->findChild<QLabel*>(QStringLiteral("folderState"))->text(), "3 files, 2 runs, 1 unreadable");
    tableOf(*dialog).sortByColumn(8, Qt::AscendingOrder); // by number: 10 before 101
    EXPECT_EQ(files(*dialog).indexOf("b.kvtrace") + 1, files(*dialog).indexOf("a.kvtrace"));
    int checked = 0;
    EXPECT_EQ(namelessControls(*dialog, checked), QStringList());
    EXPECT_GT(checked, 2);
    dialog->close();
}

TEST_F(FolderDialogTest, ADoubleClickOpensTheTraceInTheWindow) {
    const auto window = makeWindow();
    auto* dialog = new FolderDialog(folder.path(), window.get());
    QObject::connect(dialog, &FolderDialog::openRequested, window.get(), &MainWindow::openFiles);
    QSignalSpy asked(dialog, &FolderDialog::openRequested);
    dialog->show();
    ASSERT_TRUE(until([&] { return !dialog->isReading(); }));
    emit tableOf(*dialog).activated(tableOf(*dialog).model()->index(1, 3));
    ASSERT_EQ(asked.size(), 1);
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    EXPECT_TRUE(window->workspace().current()->key.path.endsWith("b.kvtrace"));
    auto* open = dialog->findChild<QPushButton*>(QStringLiteral("folderOpen"));
    EXPECT_FALSE(open->isEnabled());
    tableOf(*dialog).selectAll();
    ASSERT_TRUE(open->isEnabled());
    open->click();
    ASSERT_EQ(asked.size(), 2);
    EXPECT_EQ(asked.back().at(0).toStringList().size(), 3);
    dialog->close();
}

TEST_F(FolderDialogTest, RanksOpenAsOneTraceWithARunForEach) {
    for (const char* name : {"a", "b"})
        test::sql(folder.filePath(QStringLiteral("%1.kvtrace").arg(name)).toStdString(),
                  "INSERT OR REPLACE INTO run_meta VALUES (1, 'group', 'job'), (1, 'world', '3'), (1, 'rank', '" +
                      std::string(name[0] == 'a' ? "1" : "0") + "')",
                  SQLITE_OPEN_READWRITE);
    const auto window = makeWindow();
    auto* dialog = new FolderDialog(folder.path(), window.get());
    QObject::connect(dialog, &FolderDialog::openRequested, window.get(), &MainWindow::openFiles);
    dialog->show();
    ASSERT_TRUE(until([&] { return !dialog->isReading(); }));
    EXPECT_EQ(text(*dialog, 0, 9), "1");
    auto* ranks = dialog->findChild<QPushButton*>(QStringLiteral("folderRanks"));
    ASSERT_TRUE(ranks->isVisible());
    ranks->click();
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2; }));
    EXPECT_EQ(window->workspace().runs()[0].row.name, "<b>nine</b>, rank 0");
    EXPECT_EQ(window->workspace().runs()[1].row.name, "hundred, rank 1");
    EXPECT_TRUE(dialog->findChild<QLabel*>(QStringLiteral("folderState"))
                    ->text()
                    .startsWith("rank 2 of 3 is missing from group job"));
    dialog->close();
}

TEST_F(FolderDialogTest, AFolderThatIsNotThereIsSaid) {
    auto* dialog = new FolderDialog(folder.filePath("none"));
    ASSERT_TRUE(until([&] { return !dialog->isReading(); }));
    EXPECT_TRUE(dialog->findChild<QLabel*>(QStringLiteral("folderState"))->text().contains("cannot be read"));
    delete dialog;
}

TEST_F(FolderDialogTest, TheWindowHasTheAction) {
    const auto window = makeWindow();
    ASSERT_NE(window->action("openFolder"), nullptr);
    EXPECT_EQ(window->action("openFolder")->shortcut(), QKeySequence("Ctrl+Shift+O"));
}

} // namespace
} // namespace kvscope::ui
