// A crash, a kill and a log-out lose nothing: what is saved meanwhile, what the next start offers, what the start page
// lists.
#include "tests/ui/window_fixture.h"

#include "tests/profiler/sql_rows.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/recovery_bar.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/trace_facts.h"
#include "ui/window/session_journal.h"

#include <QComboBox>
#include <QDir>
#include <QLabel>
#include <QLineEdit>
#include <QMessageBox>
#include <QMetaMethod>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QSpinBox>
#include <QTabWidget>
#include <QTimer>

#include <sys/wait.h>
#include <unistd.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class RecoveryTest : public WindowTest {
protected:
    QString journals() const { return Settings(false, folder.filePath("desktop.ini")).journalFolder(); }
    QStringList journalFiles() const { return QDir(journals()).entryList({QStringLiteral("*.journal")}, QDir::Files); }
    /// Runs `act` in a program of its own, which then ends as if it had crashed.
    template <class Act> static void crashAfter(Act&& act) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            act();
            _exit(0); // no destructor runs
        }
        int status = 0;
        waitpid(child, &status, 0);
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    /// A program that showed some traces and recorded one of them has crashed.
    void leaveBehind(const QStringList& open, const QStringList& recording) const {
        crashAfter([&] {
            auto* journal = new SessionJournal(journals());
            journal->write({open, recording});
        });
    }
    /// A recording that was killed after so many decode steps: "running", and nobody writes.
    QString interrupted(const QString& name, int decodeSteps) {
        const QString path = folder.filePath(name);
        recordSmallTrace(path, {.decodeSteps = decodeSteps, .name = "NOSA <b>on</b> a model"});
        sqlite(path, "UPDATE run SET status = 'running'");
        return path;
    }
    static void sqlite(const QString& path, const char* statement);
    QString finished(const QString& name) {
        const QString path = folder.filePath(name);
        recordSmallTrace(path, {});
        return path;
    }
    static QList<QWidget*> offers(const MainWindow& window) {
        return window.findChildren<QWidget*>(QStringLiteral("recoveryOffer"));
    }
    static QString textOf(const QWidget* offer) { return offer->findChild<QLabel*>()->text(); }
    static QPushButton* choice(const QWidget* offer, const QString& text) {
        for (auto* button : offer->findChildren<QPushButton*>())
            if (button->text() == text) return button;
        return nullptr;
    }
    static QStringList openFiles(MainWindow& window) {
        QStringList files;
        for (const OpenRun& run : window.workspace().runs()) files << run.key.path;
        files.sort();
        return files;
    }
};

TEST_F(RecoveryTest, AJournalIsThereWhileItsProgramIs) {
    SessionJournal mine(journals());
    mine.write({{"/a", "/b"}, {"/b"}});
    EXPECT_EQ(journalFiles().size(), 1);
    EXPECT_TRUE(mine.leftBehind().empty()) << "its own is not lost";
    EXPECT_TRUE(SessionJournal(journals()).leftBehind().empty()) << "nor is that of another window";
    leaveBehind({"/c"}, {});
    EXPECT_EQ(journalFiles().size(), 2);
    {
        auto left = mine.leftBehind();
        ASSERT_EQ(left.size(), 1u);
        EXPECT_EQ(left[0].entry(), (SessionJournal::Entry{{"/c"}, {}}));
        EXPECT_TRUE(SessionJournal(journals()).leftBehind().empty()) << "two starts at once do not both offer it";
    }
    {
        auto left = mine.leftBehind();
        ASSERT_EQ(left.size(), 1u) << "nobody has answered: it is offered again";
        left[0].forget();
    }
    EXPECT_TRUE(mine.leftBehind().empty());
    mine.end();
    EXPECT_TRUE(journalFiles().isEmpty());
    mine.write({{"/late"}, {}});
    EXPECT_TRUE(journalFiles().isEmpty()) << "after its end it says nothing";
}

TEST_F(RecoveryTest, DamagedJournalsAreForgotten) {
    QDir().mkpath(journals());
    for (const char* text : {"", "{", "[1, 2]", R"({"open": "text", "recording": 5})", R"({"open": [1, null]})"}) {
        QFile file(QDir(journals()).filePath(QStringLiteral("x.journal")));
        ASSERT_TRUE(file.open(QIODevice::WriteOnly));
        file.write(text);
        file.close();
        EXPECT_TRUE(SessionJournal(journals()).leftBehind().empty()) << text;
        EXPECT_TRUE(journalFiles().isEmpty()) << text;
    }
}

TEST_F(RecoveryTest, AFolderThatCannotBeWrittenIsNoReasonToFail) {
    SessionJournal journal(QStringLiteral("/proc/nowhere"));
    journal.write({{"/a"}, {}});
    EXPECT_TRUE(journal.leftBehind().empty());
    journal.end();
}

TEST_F(RecoveryTest, ARecordingThatWasKilledIsOfferedAndOpens) {
    const QString lost = interrupted(QStringLiteral("lost.kvtrace"), 680),
                  other = finished(QStringLiteral("other.kvtrace"));
    leaveBehind({lost, other}, {lost});
    auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return offers(*window).size() == 2; }));
    EXPECT_EQ(textOf(offers(*window)[0]), QStringLiteral("Recovered: NOSA <b>on</b> a model, 680 steps"));
    EXPECT_TRUE(textOf(offers(*window)[1]).contains(QStringLiteral("other.kvtrace")))
        << textOf(offers(*window)[1]).toStdString();
    EXPECT_TRUE(window->workspace().runs().empty()) << "what may have crashed it is not opened by itself";
    QTest::mouseClick(choice(offers(*window)[0], QStringLiteral("Open")), Qt::LeftButton);
    ASSERT_TRUE(until([&] { return openFiles(*window) == QStringList{lost}; }));
    ASSERT_EQ(offers(*window).size(), 1);
    EXPECT_EQ(journalFiles().size(), 2) << "its own, and one with a question that has no answer yet";
    QTest::mouseClick(choice(offers(*window)[0], QStringLiteral("Open")), Qt::LeftButton);
    ASSERT_TRUE(until([&] { return openFiles(*window) == (QStringList{lost, other}); }));
    EXPECT_TRUE(offers(*window).isEmpty());
    EXPECT_FALSE(window->findChild<RecoveryBar*>()->isVisible());
    EXPECT_EQ(journalFiles().size(), 1);
    window->close();
    window.reset();
    EXPECT_TRUE(journalFiles().isEmpty());
    window = makeWindow(false);
    ASSERT_TRUE(until([&] { return openFiles(*window) == (QStringList{lost, other}); })) << "as after any other end";
    QTest::qWait(100);
    EXPECT_TRUE(offers(*window).isEmpty());
}

TEST_F(RecoveryTest, ADiscardedTraceGoesToTheTrashWithWhatBelongsToIt) {
    const QString lost = interrupted(QStringLiteral("lost.kvtrace"), 12);
    QFile wal(lost + QStringLiteral("-wal"));
    ASSERT_TRUE(wal.open(QIODevice::WriteOnly));
    wal.close();
    leaveBehind({lost}, {lost});
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return offers(*window).size() == 1; }));
    QTest::mouseClick(choice(offers(*window)[0], QStringLiteral("Discard")), Qt::LeftButton);
    EXPECT_TRUE(until([&] { return offers(*window).isEmpty(); }));
    EXPECT_FALSE(QFile::exists(lost));
    EXPECT_FALSE(QFile::exists(wal.fileName()));
    EXPECT_TRUE(journalFiles().isEmpty());
    EXPECT_TRUE(window->findChild<QLabel*>("statusMessage")->text().contains(QStringLiteral("lost.kvtrace")));
}

TEST_F(RecoveryTest, WhatIsOpenedInAnotherWayNeedsNoAnswer) {
    const QString lost = interrupted(QStringLiteral("lost.kvtrace"), 12), other = finished(QStringLiteral("b.kvtrace"));
    leaveBehind({lost, other}, {lost});
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return offers(*window).size() == 2; }));
    window->openFiles({other});
    EXPECT_TRUE(until([&] { return offers(*window).size() == 1; }));
    EXPECT_TRUE(textOf(offers(*window)[0]).startsWith(QStringLiteral("Recovered")));
    window->openFiles({lost});
    EXPECT_TRUE(until([&] { return offers(*window).isEmpty(); }));
    EXPECT_EQ(journalFiles().size(), 1) << "its own";
}

TEST_F(RecoveryTest, WhatIsNotAnsweredIsOfferedAgain) {
    const QString lost = interrupted(QStringLiteral("lost.kvtrace"), 12);
    leaveBehind({lost}, {lost});
    for (int start = 0; start < 2; ++start) {
        const auto window = makeWindow(false);
        ASSERT_TRUE(until([&] { return offers(*window).size() == 1; })) << start;
        window->close();
    }
    QFile::remove(lost); // somebody else has cleaned up
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return journalFiles().isEmpty(); }));
    EXPECT_TRUE(offers(*window).isEmpty());
}

TEST_F(RecoveryTest, AWindowThatIsFreshAsksAndRemembersNothing) {
    const QString lost = interrupted(QStringLiteral("lost.kvtrace"), 12);
    leaveBehind({lost}, {lost});
    const auto window = makeWindow(true);
    window->openFiles({lost});
    ASSERT_TRUE(until([&] { return window->workspace().current() && window->workspace().idle(); }));
    QTest::qWait(100);
    EXPECT_TRUE(offers(*window).isEmpty());
    EXPECT_EQ(journalFiles().size(), 1);
}

TEST_F(RecoveryTest, AnOpenWindowSavesItselfSoonAfterAChange) {
    const QString path = finished(QStringLiteral("a.kvtrace"));
    const auto window = makeWindow(false);
    window->activateWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() && window->workspace().idle(); }));
    EXPECT_EQ(journalFiles().size(), 1);
    const Settings settings(false, folder.filePath("desktop.ini"));
    EXPECT_TRUE(until([&] { return settings.load().openFiles == QStringList{path}; })) << "the window is still open";
    window->showView(QStringLiteral("transfers"));
    EXPECT_TRUE(until([&] { return settings.load().view == QLatin1String("transfers"); }));
}

/// As a signal ends it, or a log-out.
TEST_F(RecoveryTest, TheEndOfTheProgramEndsASessionAsStopDoes) {
    auto window = makeWindow(false);
    ASSERT_TRUE(until([&] {
        return window->form().problem().isEmpty() && window->controller().state() == SessionController::State::Idle;
    }));
    window->form().findChild<QComboBox*>("promptKind")->setCurrentIndex(int(PromptSource::Kind::Needle));
    window->form().findChild<QSpinBox*>("needleTokens")->setValue(200);
    window->form().findChild<QSpinBox*>("needleCount")->setValue(1);
    window->form().findChild<QSpinBox*>("maxNewTokens")->setValue(5000);
    window->form().setValues({{"stopAtEos", false}});
    window->action("run")->trigger();
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.current() && workspace.current()->row.steps > 3; }));
    const QString path = workspace.current()->key.path;
    EXPECT_EQ(journalFiles().size(), 1);
    QTimer::singleShot(0, qApp, [] { QCoreApplication::exit(3); });
    EXPECT_EQ(QCoreApplication::exec(), 3);
    EXPECT_TRUE(journalFiles().isEmpty()) << "nothing was lost";
    EXPECT_TRUE(window->close()) << "without a question";
    window.reset(); // the worker is joined
    const RunRow row = *TraceReader(path.toStdString()).run(1);
    EXPECT_EQ(row.status, RunStatus::Stopped);
    EXPECT_GT(row.steps, 3);
    const auto next = makeWindow(false);
    EXPECT_TRUE(until([&] { return openFiles(*next) == QStringList{path}; })) << "it is there again";
}

/// Asks the program to save as Qt does when a session manager announces a log-out. No session manager runs here.
void askToSave() {
    void* arguments[] = {nullptr, nullptr};
    QMetaObject::activate(qApp, QMetaMethod::fromSignal(&QGuiApplication::commitDataRequest).methodIndex(), arguments);
}

TEST_F(RecoveryTest, ALogOutSavesAndTheWindowGoesOn) {
    const QString path = finished(QStringLiteral("a.kvtrace"));
    const auto window = makeWindow(false);
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() && window->workspace().idle(); }));
    window->showView(QStringLiteral("breakdown"));
    askToSave();
    EXPECT_EQ(Settings(false, folder.filePath("desktop.ini")).load().openFiles, QStringList{path});
    EXPECT_EQ(journalFiles().size(), 1) << "it is still open";
    window->showView(QStringLiteral("transfers"));
    EXPECT_TRUE(window->close());
    EXPECT_EQ(Settings(false, folder.filePath("desktop.ini")).load().view, QStringLiteral("transfers"));
}

TEST_F(RecoveryTest, SettingsThatCannotBeWrittenAreSaidOnce) {
    const QString blocked = folder.filePath(QStringLiteral("blocked")),
                  settings = blocked + QStringLiteral("/desktop.ini");
    ASSERT_TRUE(QFile(blocked).open(QIODevice::WriteOnly)); // a file where the folder must be stops root, too
    MainWindow window(Settings(false, settings));
    window.show();
    ASSERT_TRUE(QTest::qWaitForWindowExposed(&window));
    const auto* message = window.findChild<QLabel*>(QStringLiteral("statusMessage"));
    const QString problem = window.saveSession();
    EXPECT_TRUE(problem.contains(settings + QStringLiteral(" could not be written"))) << problem.toStdString();
    EXPECT_EQ(message->text(), problem);
    window.showMessage({});
    EXPECT_EQ(window.saveSession(), QString()) << "a person knows it";
    EXPECT_EQ(message->text(), QString());
    QFile::remove(blocked);
    EXPECT_EQ(window.saveSession(), QString());
    EXPECT_TRUE(QFileInfo(settings).isFile()) << "it is tried again";

    QFile::remove(settings);
    QDir(folder.path()).rmdir(QStringLiteral("blocked"));
    ASSERT_TRUE(QFile(blocked).open(QIODevice::WriteOnly));
    QString said;
    QTimer::singleShot(200, [&] {
        for (QWidget* box : QApplication::topLevelWidgets())
            if (auto* asked = qobject_cast<QMessageBox*>(box); asked && asked->isVisible())
                said = asked->text(), asked->accept();
    });
    EXPECT_TRUE(window.close());
    EXPECT_EQ(said, problem) << "the line of a window that closes is seen by nobody";
}

TEST_F(RecoveryTest, TheStartPageListsWhatWasRecordedHere) {
    const QDir traces(SessionController::tracesFolder());
    for (const QString& old : traces.entryList(QDir::Files)) QFile::remove(traces.filePath(old));
    const auto window = makeWindow();
    const auto lines = [&] { return window->findChildren<QLabel*>(QStringLiteral("recordedTrace")); };
    QTest::qWait(100);
    EXPECT_TRUE(lines().isEmpty());
    EXPECT_FALSE(window->findChild<QLabel*>("tracesTitle")->isVisible());
    QFile::copy(finished(QStringLiteral("first.kvtrace")), traces.filePath(QStringLiteral("first.kvtrace")));
    QFile::copy(interrupted(QStringLiteral("second.kvtrace"), 9), traces.filePath(QStringLiteral("second.kvtrace")));
    QFile broken(traces.filePath(QStringLiteral("third.kvtrace")));
    ASSERT_TRUE(broken.open(QIODevice::WriteOnly));
    broken.write("no trace");
    broken.close();
    const auto next = makeWindow();
    const auto found = [&](const QString& name) -> QLabel* {
        for (auto* line : next->findChildren<QLabel*>(QStringLiteral("recordedTrace")))
            if (line->toolTip().endsWith(name)) return line;
        return nullptr;
    };
    ASSERT_TRUE(until([&] { return next->findChildren<QLabel*>(QStringLiteral("recordedTrace")).size() == 3; }));
    EXPECT_TRUE(found("first.kvtrace")->text().contains(QStringLiteral("6 steps · finished")))
        << found("first.kvtrace")->text().toStdString();
    EXPECT_TRUE(found("second.kvtrace")->text().contains(QStringLiteral("NOSA &lt;b&gt;on&lt;/b&gt;")))
        << found("second.kvtrace")->text().toStdString();
    EXPECT_TRUE(found("second.kvtrace")->text().contains(QStringLiteral("9 steps")));
    EXPECT_TRUE(found("third.kvtrace")->text().contains(QStringLiteral("third"))) << "and why it cannot be read";
    emit found("first.kvtrace")->linkActivated(found("first.kvtrace")->toolTip());
    EXPECT_TRUE(until([&] { return next->workspace().current() != nullptr; }));
    for (const QString& each : traces.entryList(QDir::Files)) QFile::remove(traces.filePath(each));
}

void RecoveryTest::sqlite(const QString& path, const char* statement) {
    test::sql(path.toStdString(), statement, SQLITE_OPEN_READWRITE);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
