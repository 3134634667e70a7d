// The list of a folder's traces: rows come while files are read, are sorted by number, and open on a double click.
#include "tests/profiler/sql_rows.h"
#include "tests/ui/nameless_controls.h"
#include "tests/ui/window_fixture.h"

#include "ui/frame/small_widgets.h"
#include "ui/widgets/folder_dialog.h"

#include <QComboBox>
#include <QDir>
#include <QFile>
#include <QLabel>
#include <QPushButton>
#include <QSignalSpy>
#include <QTreeView>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

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
    EXPECT_EQ(text(*dialog, 0, 8), "100") << "the prompt is no step";
    EXPECT_EQ(text(*dialog, 1, 7), "finished");
    EXPECT_TRUE(text(*dialog, 2, 7).contains("not a KVScope trace"));
    EXPECT_EQ(dialog->findChild<QLabel*>(QStringLiteral("folderState"))->text(), "3 files, 2 runs, 1 unreadable");
    tableOf(*dialog).sortByColumn(8, Qt::AscendingOrder); // by number: 10 before 100
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
    QObject::connect(dialog, &FolderDialog::ranksRequested, window.get(), [&](const QString& path) {
        window->openFiles({path});
        window->showView(QStringLiteral("ranks"));
    });
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
    auto* view = window->currentView();
    const auto label = [&](const char* name) { return view->findChild<QLabel*>(QLatin1String(name)); };
    ASSERT_TRUE(until([&] { return label("rankHeadline") && label("rankHeadline")->isVisible(); }));
    auto* problems = view->findChild<InlineMessage*>(QStringLiteral("rankProblems"));
    EXPECT_TRUE(problems->text().startsWith("Rank 2 of 3 is missing from group job."))
        << problems->text().toStdString();
    EXPECT_TRUE(view->exportCsv().startsWith("step,rank,run_id,step_ns,"));
    // the picker of the tool bar chooses what all views show, and a missing rank cannot be chosen
    auto* picker = window->findChild<QComboBox*>(QStringLiteral("rankPicker"));
    ASSERT_TRUE(picker->isVisible());
    EXPECT_EQ(picker->itemText(2), "2 (missing)");
    EXPECT_EQ(picker->currentText(), "0");
    emit picker->activated(1);
    EXPECT_EQ(window->workspace().current()->row.name, "hundred, rank 1");
    EXPECT_EQ(picker->currentText(), "1");
    window->showView(QStringLiteral("locality"));
    emit picker->activated(picker->count() - 1);
    EXPECT_EQ(window->currentView(), view) << "all side by side";
    dialog->close();
}

TEST_F(FolderDialogTest, SubfoldersAreListedAsDeepAsIsAsked) {
    ASSERT_TRUE(QDir(folder.path()).mkpath("monday/late"));
    ASSERT_TRUE(QFile::copy(folder.filePath("a.kvtrace"), folder.filePath("monday/d.kvtrace")));
    ASSERT_TRUE(QFile::copy(folder.filePath("a.kvtrace"), folder.filePath("monday/late/e.kvtrace")));
    auto* dialog = new FolderDialog(folder.path());
    dialog->show();
    auto* depth = dialog->findChild<QComboBox*>(QStringLiteral("folderDepth"));
    const auto listed = [&](int choice) {
        depth->setCurrentIndex(choice);
        EXPECT_TRUE(until([&] { return !dialog->isReading(); }));
        return files(*dialog);
    };
    const QStringList here{"a.kvtrace", "b.kvtrace", "c.kvtrace"};
    EXPECT_EQ(listed(0), here);
    EXPECT_EQ(listed(1), here + QStringList{"monday/d.kvtrace"});
    EXPECT_EQ(listed(4), here + QStringList({"monday/d.kvtrace", "monday/late/e.kvtrace"}));
    EXPECT_TRUE(dialog->findChild<QLabel*>(QStringLiteral("folderState"))->text().contains("in 3 folders"));
    EXPECT_EQ(listed(0), here);
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
