// What a person sees in the first minutes: a start page, samples, one font, nothing cut in a small window, copies of
// what is shown, dialogs that a screen reader can name.
#include "tests/ui/nameless_controls.h"
#include "tests/ui/window_fixture.h"

#include "core/model/model.h"
#include "resources/samples.h"
#include "ui/frame/as_written.h"
#include "ui/frame/empty_page.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"
#include "ui/widgets/welcome_page.h"
#include "ui/window/shortcut_list.h"

#include <QClipboard>
#include <QComboBox>
#include <QDialog>
#include <QDir>
#include <QDockWidget>
#include <QFile>
#include <QLabel>
#include <QPushButton>
#include <QTabBar>
#include <QTabWidget>
#include <QTextDocumentFragment>
#include <QToolButton>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class FirstLook : public WindowTest {};

/// Insights and Waterfall stood behind the arrow at the end of the tabs, after views of servers and ranks.
TEST_F(FirstLook, WhatLimitsARunHasTabsInSight) {
    const auto window = windowOnTrace();
    window->resize(1280, 800);
    settle(*window);
    const QTabBar* tabs = window->findChild<QTabWidget*>(QStringLiteral("views"))->tabBar();
    for (const char* title : {"Insights", "Waterfall"}) {
        int place = -1;
        for (int tab = 0; tab < tabs->count(); ++tab)
            if (tabs->tabText(tab) == QLatin1String(title)) place = tab;
        ASSERT_GE(place, 0) << title;
        EXPECT_TRUE(tabs->rect().contains(tabs->tabRect(place))) << title;
        QTest::mouseClick(const_cast<QTabBar*>(tabs), Qt::LeftButton, {}, tabs->tabRect(place).center());
        settle(*window);
        EXPECT_EQ(window->currentView()->accessibleName(), QLatin1String(title));
    }
}

TEST(StartPage, ShowsEveryLinkOnceHoweverOftenItIsFilled) {
    const QTemporaryDir folder;
    QStringList recent;
    for (const char* name : {"first.kvtrace", "second.kvtrace", "gone.kvtrace"})
        recent << folder.filePath(QLatin1String(name));
    for (const QString& path : recent.mid(0, 2)) ASSERT_TRUE(QFile(path).open(QIODevice::WriteOnly));
    WelcomePage page;
    page.resize(900, 700);
    page.show();
    for (int round = 0; round < 3; ++round) {
        QEvent colours(QEvent::PaletteChange);
        QApplication::sendEvent(&page, &colours);
        page.setRecent(recent);
    }
    QCoreApplication::processEvents(); // new labels are shown by it; those that were replaced may live on
    QStringList texts, gone;
    for (const QLabel* label : page.findChildren<QLabel*>()) {
        if (!label->isHidden() && label->text().contains(QStringLiteral("href"))) texts << label->text();
        if (!label->isHidden() && label->text().contains(QStringLiteral("no longer there"))) gone << label->text();
    }
    EXPECT_EQ(gone, QStringList{QStringLiteral("gone.kvtrace (no longer there)")});
    EXPECT_EQ(texts.removeDuplicates(), 0);
    EXPECT_EQ(texts.size(), int(resources::sampleTraces().size()) + 2 + 1) << "samples, recent files, the keys";
}

class Samples : public testing::Test {
protected:
    Samples() {
        qputenv("XDG_DATA_HOME", folder.path().toLocal8Bit());
        QStandardPaths::setTestModeEnabled(false); // the test's own folder instead
        QObject::connect(&page, &WelcomePage::fileRequested, [this](const QString& path) { opened << path; });
        QObject::connect(&page, &WelcomePage::failed, [this](const QString& sentence) { problems << sentence; });
    }
    ~Samples() override {
        QStandardPaths::setTestModeEnabled(true);
        qunsetenv("XDG_DATA_HOME");
    }
    void choose() { emit page.findChild<QLabel*>(QStringLiteral("sample0"))->linkActivated(QStringLiteral("0")); }

    QTemporaryDir folder;
    WelcomePage page;
    QStringList opened, problems;
};

TEST_F(Samples, KeepTheNotesThatWereLeftInThem) {
    choose();
    ASSERT_EQ(opened.size(), 1) << problems.join(QLatin1Char(' ')).toStdString();
    QFile file(opened.front());
    ASSERT_TRUE(file.open(QIODevice::Append));
    file.write("a page more, as after a note");
    file.close();
    const qint64 size = file.size();
    choose();
    EXPECT_EQ(QFileInfo(opened.front()).size(), size);
    ASSERT_TRUE(file.resize(1000)); // as a full disk leaves it
    choose();
    EXPECT_GT(QFileInfo(opened.front()).size(), 1000);
}

TEST_F(Samples, AreThoseOfThisProgramWhateverAnotherVersionLeftThere) {
    const auto& sample = resources::sampleTraces()[0];
    const QDir samples(QStandardPaths::writableLocation(QStandardPaths::AppLocalDataLocation) + "/samples");
    QFile old(samples.filePath(QString::fromUtf8(sample.file.data(), qsizetype(sample.file.size()))));
    ASSERT_TRUE(samples.mkpath(".") && old.open(QIODevice::WriteOnly));
    old.write(QByteArray(qsizetype(sample.bytes.size()) + 4096, 'x')); // larger, as one with notes is
    old.close();
    choose();
    ASSERT_EQ(opened.size(), 1) << problems.join(QLatin1Char(' ')).toStdString();
    choose();
    QFile file(opened.front());
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    EXPECT_TRUE(file.readAll() == QByteArrayView(sample.bytes.data(), qsizetype(sample.bytes.size())));
}

TEST(StartPage, NamesFilesAsTheyAreCalled) {
    const QTemporaryDir folder;
    const QString there = folder.filePath(QStringLiteral("R&D <b>1.kvtrace")),
                  gone = folder.filePath(QStringLiteral("R&D <b>2.kvtrace"));
    ASSERT_TRUE(QFile(there).open(QIODevice::WriteOnly));
    WelcomePage page;
    page.setRecent({there, gone});
    const auto shown = [&](const QString& path) {
        for (const QLabel* label : page.findChildren<QLabel*>()) {
            if (label->toolTip() != asWritten(path)) continue;
            if (label->textFormat() == Qt::PlainText) return label->text();
            return QTextDocumentFragment::fromHtml(label->text()).toPlainText();
        }
        return QString();
    };
    EXPECT_EQ(shown(there), QStringLiteral("R&D <b>1.kvtrace"));
    EXPECT_EQ(shown(gone), QStringLiteral("R&D <b>2.kvtrace (no longer there)"));
}

TEST_F(Samples, SayWhereThereIsNoRoomForThem) {
    choose();
    ASSERT_EQ(opened.size(), 1);
    const QString samples = QFileInfo(opened.front()).absolutePath();
    ASSERT_TRUE(QDir(samples).removeRecursively());
    QFile inTheWay(samples); // a file stands where the folder must be made, which stops root too
    ASSERT_TRUE(inTheWay.open(QIODevice::WriteOnly));
    choose();
    EXPECT_EQ(opened.size(), 1);
    ASSERT_EQ(problems.size(), 1);
    EXPECT_TRUE(problems.front().contains(samples)) << problems.front().toStdString();
}

TEST_F(Samples, AFolderForRecordingsThatCannotBeMadeIsNamed) {
    const QString home = folder.filePath(QStringLiteral("file")); // a file cannot hold a folder, whoever asks
    ASSERT_TRUE(QFile(home).open(QIODevice::WriteOnly));
    qputenv("XDG_DATA_HOME", home.toLocal8Bit());
    Workspace workspace;
    SessionController controller(workspace);
    QSignalSpy failed(&controller, &SessionController::failed);
    SessionRequest request;
    request.model = QString::fromLatin1(kDefaultModel);
    request.prompts = {QStringLiteral("Once upon a time")};
    controller.start(request);
    ASSERT_TRUE(QTest::qWaitFor([&] { return !failed.isEmpty(); }, 60'000));
    const QString sentence = failed.front().front().toString();
    EXPECT_TRUE(sentence.contains(SessionController::tracesFolder())) << sentence.toStdString();
    EXPECT_TRUE(sentence.contains(QStringLiteral("cannot be made"))) << sentence.toStdString();
}

TEST(StartPage, SaysWhyNothingCanBeRun) {
    WelcomePage page;
    page.setRunProblem(QStringLiteral("The model could not be loaded."));
    EXPECT_EQ(page.findChild<QLabel*>("welcomeRunProblem")->text(), QStringLiteral("The model could not be loaded."));
    EXPECT_FALSE(page.findChild<QPushButton*>("welcomeRun")->isEnabled());
    page.setRunProblem({});
    EXPECT_EQ(page.findChild<QLabel*>("welcomeRunProblem")->text(), QString());
}

TEST(StartPage, FitsBetweenThePanelsOfASmallWindow) {
    WelcomePage page;
    page.setRecent({QStringLiteral("/a/first.kvtrace")});
    EXPECT_LE(page.minimumSizeHint().width(), 300) << "its words wrap";
}

TEST_F(FirstLook, EverythingIsMadeInOneFont) {
    // As the program finds it when it starts: no style sheet yet, and the system's font smaller than ours.
    qApp->setStyleSheet({});
    QFont system = QApplication::font();
    system.setPointSizeF(8);
    QApplication::setFont(system);
    const auto window = makeWindow();
    const double ours = QApplication::font().pointSizeF();
    EXPECT_GT(ours, 8);
    int labels = 0;
    for (const QLabel* label : window->form().findChildren<QLabel*>()) {
        if (label->isHidden() || label->text().isEmpty()) continue;
        ++labels;
        EXPECT_DOUBLE_EQ(label->font().pointSizeF(), ours) << label->text().toStdString();
        EXPECT_EQ(label->fontMetrics().height(), QFontMetrics(QApplication::font()).height())
            << label->text().toStdString();
    }
    EXPECT_GT(labels, 10);
}

TEST_F(FirstLook, ATraceWithoutItsPrefillOpensAtItsFirstStep) {
    const auto& sample = resources::sampleTraces().back(); // the 8B shape, decoded from a cache that was there
    const QString path = folder.filePath("sample.kvtrace");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(reinterpret_cast<const char*>(sample.bytes.data()), qint64(sample.bytes.size()));
    file.close();
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() && window->workspace().idle(); }));
    EXPECT_EQ(window->workspace().cursor().step, 1);
    EXPECT_TRUE(until([&] { return window->inspector().stepFacts()->value("Step") == "1"; }));
}

TEST_F(FirstLook, ARunWithItsPrefillOpensThere) {
    const auto window = windowOnTrace();
    EXPECT_EQ(window->workspace().cursor().step, 0);
}

TEST_F(FirstLook, ASmallWindowCutsNoFactAndKeepsTheControls) {
    const auto window = windowOnTrace();
    window->resize(900, 600);
    window->findChild<QDockWidget*>("inspectorDock")->show();
    window->workspace().setCursor({.step = 2, .block = 1});
    settle(*window);
    EXPECT_EQ(window->size(), QSize(900, 600)) << window->minimumSizeHint().width();
    const Inspector& inspector = window->inspector();
    EXPECT_LE(inspector.widget()->minimumSizeHint().width(), inspector.viewport()->width());
    EXPECT_LE(inspector.widget()->width(), inspector.viewport()->width());
    for (QWidget* control : window->tokens().findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly))
        if (control->isVisible()) {
            EXPECT_LE(control->geometry().right(), window->tokens().width()) << control->metaObject()->className();
        }
    EXPECT_LE(window->tokens().minimumSizeHint().width(), 200) << "its words give way";
}

TEST(EmptyPageButtons, GoBelowEachOtherWhereThePageIsNarrow) {
    EmptyPage page;
    const QString longName = QStringLiteral("Compare with NOSA on a model of quite some size and more");
    page.setTexts(QStringLiteral("Nothing here"), QStringLiteral("Because."),
                  {{longName, [] {}}, {QStringLiteral("Open a trace…"), [] {}}});
    page.show();
    const auto button = [&](int index) {
        return page.findChild<QPushButton*>(QStringLiteral("emptyAction%1").arg(index));
    };
    for (const int width : {900, 260, 900}) {
        page.resize(width, 500);
        ASSERT_EQ(page.width(), width);
        const auto below = [&] {
            return button(1)->mapTo(&page, QPoint()).y() > button(0)->mapTo(&page, QPoint()).y();
        };
        EXPECT_TRUE(QTest::qWaitFor([&] { // the window system tells the size, and layouts follow in turns
            return below() == (width == 260) && button(0)->width() >= button(0)->sizeHint().width() &&
                   (button(0)->text() == longName) == (width == 900);
        })) << width
            << ": " << button(0)->width() << " of " << button(0)->sizeHint().width();
        for (int i = 0; i < 2; ++i) {
            const QRect place(button(i)->mapTo(&page, QPoint(0, 0)), button(i)->size());
            EXPECT_TRUE(page.rect().contains(place)) << width << ": button " << i;
            EXPECT_GE(button(i)->width(), button(i)->sizeHint().width()) << "its text is not cut";
        }
        EXPECT_EQ(button(0)->accessibleName(), longName);
        EXPECT_EQ(button(0)->toolTip().isEmpty(), width == 900) << "what ends in dots is said in full";
    }
}

TEST_F(FirstLook, EveryLineOfTheHelpHasKeysAndWords) {
    const auto window = windowOnTrace();
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
    }
    const auto lines = shortcutsOf(*window);
    EXPECT_GT(lines.size(), 50u);
    for (const ShortcutText& line : lines) {
        EXPECT_FALSE(line.action.trimmed().isEmpty()) << line.group.toStdString() << ": " << line.keys.toStdString();
        EXPECT_FALSE(line.keys.trimmed().isEmpty()) << line.action.toStdString();
        EXPECT_FALSE(line.group.trimmed().isEmpty()) << line.action.toStdString();
    }
}

/// The Edit menu's three ways to take along what is shown, in every view and every page of Compare.
TEST_F(FirstLook, EveryViewIsCopiedAsTablePictureAndSqlOrSaysWhyNot) {
    const auto window = windowOnTrace();
    const QString other = folder.filePath("other.kvtrace");
    recordSmallTrace(other, {.missesPerHead = 0, .name = "Another"});
    window->openFiles({other});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2 && window->workspace().idle(); }));
    window->workspace().setCompared(window->workspace().runs().front().key, true);
    auto* message = window->findChild<QLabel*>("statusMessage");
    const auto copyAll = [&](const std::string& where) {
        SCOPED_TRACE(where);
        QApplication::clipboard()->clear();
        trigger(*window, "copyImage");
        const QImage picture = QApplication::clipboard()->image();
        EXPECT_GT(picture.width(), 200);
        EXPECT_TRUE(message->text().contains("copied"));
        QApplication::clipboard()->clear();
        window->showMessage({});
        trigger(*window, "copySql");
        EXPECT_NE(QApplication::clipboard()->text().isEmpty(), message->text().contains("copied"))
            << "either a statement or a sentence: " << message->text().toStdString();
        EXPECT_FALSE(message->text().isEmpty());
        QApplication::clipboard()->clear();
        QSignalSpy done(window->currentView(), &View::numbersExported);
        trigger(*window, "copyTable");
        ASSERT_TRUE(until([&] { return !done.isEmpty(); })) << "neither copied nor refused";
        EXPECT_NE(QApplication::clipboard()->text().isEmpty(), done.first().at(1).toString().isEmpty());
    };
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
        auto* pages = window->currentView()->findChild<QTabBar*>("comparePages");
        for (int page = 0; page < (pages ? pages->count() : 1); ++page) {
            if (pages) pages->setCurrentIndex(page);
            settle(*window);
            copyAll(entry.id + std::string(" ") + std::to_string(page));
        }
    }
    // Where a page has a statement, the window's key gives it.
    window->showView(QStringLiteral("compare"));
    window->currentView()->findChild<QTabBar*>("comparePages")->setCurrentIndex(0);
    settle(*window);
    trigger(*window, "copySql");
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith("SELECT")) << message->text().toStdString();
}

TEST_F(FirstLook, EveryControlOfEveryDialogHasANameForScreenReaders) {
    const auto window = windowOnTrace();
    window->showView(QStringLiteral("transfers"));
    settle(*window);
    for (const char* name : {"exportView", "exportFigure", "calibrate", "serve", "shortcuts"}) trigger(*window, name);
    ASSERT_TRUE(until([&] { return window->form().hasModel(); }));
    window->form().findChild<QToolButton*>("modelDetails")->click();
    QCoreApplication::processEvents();
    int checked = 0, dialogs = 0;
    QStringList nameless;
    for (const QDialog* dialog : window->findChildren<QDialog*>()) {
        ++dialogs;
        EXPECT_FALSE(dialog->isModal()) << dialog->windowTitle().toStdString();
        EXPECT_FALSE(dialog->windowTitle().isEmpty());
        nameless << namelessControls(*dialog, checked);
    }
    EXPECT_GE(dialogs, 5);
    EXPECT_GT(checked, 20);
    EXPECT_TRUE(nameless.isEmpty()) << nameless.join("\n").toStdString();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
