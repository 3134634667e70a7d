// The desktop end to end with the embedded model: form, run, views, pause, step, cancel, export, and what it remembers.
#include "ui/window/main_window.h"

#include "core/model/model.h"
#include "profiler/read/trace_reader.h"
#include "tests/support/places.h"
#include "tests/ui/full_disk.h"
#include "tests/ui/small_trace.h"
#include "tests/ui/waiting.h"
#include "ui/frame/definitions.h"
#include "ui/frame/view.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/help_overlay.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"

#include <QAction>
#include <QComboBox>
#include <QDir>
#include <QDropEvent>
#include <QFile>
#include <QFileInfo>
#include <QLabel>
#include <QMenu>
#include <QMessageBox>
#include <QMimeData>
#include <QPushButton>
#include <QSet>
#include <QSignalSpy>
#include <QSpinBox>
#include <QStandardPaths>
#include <QTabWidget>
#include <QTemporaryDir>
#include <QTest>
#include <QTimer>
#include <gtest/gtest.h>

#include <fstream>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using State = SessionController::State;
constexpr int kLong = 60'000; // milliseconds; sanitizers and busy machines are slow

template <class Condition> bool until(Condition&& condition, int patience = kLong) {
    return waitUntil(condition, patience);
}

class MainWindowTest : public testing::Test {
protected:
    MainWindowTest() { QStandardPaths::setTestModeEnabled(true); }

    std::unique_ptr<MainWindow> makeWindow(bool fresh = true) {
        auto window = std::make_unique<MainWindow>(Settings(fresh, folder.filePath("desktop.ini")));
        window->show();
        EXPECT_TRUE(QTest::qWaitForWindowExposed(window.get()));
        return window;
    }
    static bool ready(MainWindow& window) {
        return until([&] { return window.form().problem().isEmpty() && window.controller().state() == State::Idle; });
    }
    static void fill(MainWindow& window, int promptTokens, int newTokens) {
        window.form().findChild<QComboBox*>("promptKind")->setCurrentIndex(int(PromptSource::Kind::Needle));
        window.form().findChild<QSpinBox*>("needleTokens")->setValue(promptTokens);
        window.form().findChild<QSpinBox*>("needleCount")->setValue(1);
        window.form().findChild<QSpinBox*>("maxNewTokens")->setValue(newTokens);
        window.form().setValues({{"stopAtEos", false}});
    }
    /// A long run that waits before its first step.
    static bool startsPaused(MainWindow& window) {
        fill(window, 200, 2000);
        SessionRequest request = window.form().request();
        request.startPaused = true;
        emit window.form().runRequested(request);
        return until([&] { return window.controller().state() == State::Paused; });
    }
    static QString status(MainWindow& window) { return window.findChild<QLabel*>("statusMessage")->text(); }

    QTemporaryDir folder;
};

TEST_F(MainWindowTest, SampleTracesOpenFromTheStartPage) {
    for (const char* name : {"sample0", "sample1"}) {
        SCOPED_TRACE(name);
        const auto window = makeWindow();
        auto* link = window->findChild<QLabel*>(QString::fromLatin1(name));
        ASSERT_NE(link, nullptr);
        emit link->linkActivated(QString::fromLatin1(name).last(1));
        ASSERT_TRUE(until([&] { return window->currentView() != nullptr; })) << status(*window).toStdString();
        const auto* inspector = window->findChild<Inspector*>();
        ASSERT_NE(inspector, nullptr);
        EXPECT_TRUE(until([&] {
            for (const auto* label : inspector->findChildren<QLabel*>())
                if (label->text().contains(QStringLiteral("NVIDIA H200"))) return true;
            return false;
        })) << "the inspector names the GPU";
    }
}

TEST_F(MainWindowTest, SampleTracesStayInTheHelpMenuAndOpenInTheViewThatShowsThemBest) {
    const auto window = makeWindow();
    const auto* menu = window->findChild<QMenu*>("sampleTraces");
    ASSERT_NE(menu, nullptr);
    ASSERT_EQ(menu->actions().size(), 3);
    Workspace& workspace = window->workspace();
    menu->actions()[0]->trigger(); // three methods over one prompt
    ASSERT_TRUE(until([&] { return workspace.sides().size() == 3; })) << status(*window).toStdString();
    EXPECT_EQ(window->currentView()->id(), QStringLiteral("compare"));
    window->showView(QStringLiteral("locality"));
    workspace.setCompare(std::nullopt);
    menu->actions()[0]->trigger(); // its runs are open already
    EXPECT_TRUE(until([&] { return workspace.sides().size() == 3; }));
    EXPECT_EQ(window->currentView()->id(), QStringLiteral("compare"));
    menu->actions()[2]->trigger(); // one run
    ASSERT_TRUE(until([&] { return window->currentView()->id() == QLatin1String("insights"); }));
    EXPECT_EQ(workspace.sides().size(), 1U) << "the runs of another sample are not compared with it";
}

TEST_F(MainWindowTest, AViewThatNeedsNoRunReplacesTheStartPage) {
    const auto window = makeWindow();
    EXPECT_EQ(window->currentView(), nullptr);
    EXPECT_FALSE(window->action("exportView")->isEnabled());
    window->findChild<QAction*>("view_roofline")->trigger();
    ASSERT_NE(window->currentView(), nullptr);
    EXPECT_FALSE(window->currentView()->exportCsv().isEmpty());
    EXPECT_TRUE(window->action("exportView")->isEnabled());
    window->findChild<QAction*>("view_locality")->trigger();
    EXPECT_EQ(window->currentView(), nullptr) << "the others have nothing to show: the start page says what to do";
}

TEST_F(MainWindowTest, ASessionFromFormToViews) {
    const auto window = makeWindow();
    EXPECT_EQ(window->currentView(), nullptr) << "the welcome page is shown first";
    ASSERT_TRUE(ready(*window)) << window->form().problem().toStdString();
    fill(*window, 600, 8);
    QSignalSpy finished(&window->controller(), &SessionController::finished);
    QSignalSpy failed(&window->controller(), &SessionController::failed);
    QTest::mouseClick(window->form().findChild<QPushButton*>("runButton"), Qt::LeftButton);
    EXPECT_FALSE(window->action("run")->isEnabled());
    ASSERT_TRUE(until([&] { return !finished.isEmpty() || !failed.isEmpty(); }));
    ASSERT_TRUE(failed.isEmpty()) << failed[0][0].toString().toStdString();
    EXPECT_TRUE(finished[0][0].toBool());
    EXPECT_EQ(window->controller().state(), State::Idle);

    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.current() && workspace.current()->row.status == RunStatus::Finished; }));
    const RunRow row = workspace.current()->row;
    EXPECT_EQ(row.method, "nosa");
    EXPECT_TRUE(window->windowTitle().startsWith(QString::fromStdString(row.name)))
        << window->windowTitle().toStdString();
    EXPECT_EQ(row.steps, 8) << "the prefill gives the first of 8 tokens";
    EXPECT_EQ(row.droppedSteps, 0);
    TokenStrip* strip = window->tokens().strip();
    ASSERT_TRUE(until([&] { return strip->lastStep() == 7 && workspace.idle(); }));
    EXPECT_EQ(strip->chipCount() - strip->promptCount(), 8);
    EXPECT_TRUE(until([&] { return workspace.cursor().step == 7; })) << "the cursor follows a live run";

    QTest::mouseClick(strip->viewport(), Qt::LeftButton, {}, strip->revealStep(3));
    EXPECT_EQ(workspace.cursor().step, 3);
    FactTable* step = window->inspector().stepFacts();
    ASSERT_TRUE(until([&] { return step->value("Step") == "3"; }));
    EXPECT_TRUE(step->value("Wall time").endsWith("(measured)"));
    EXPECT_TRUE(step->value("Exposed").endsWith("(modelled)"));

    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        View* view = window->currentView();
        ASSERT_NE(view, nullptr);
        ASSERT_TRUE(until([&] { return workspace.idle(); }));
        const QLatin1String id(entry.id);
        // They need a second run, a run of a block-diffusion model, one in several processes, and one that serves.
        if (QStringList{"compare", "denoising", "ranks", "serving", "rates", "slo", "capacity"}.contains(id)) continue;
        EXPECT_TRUE(until([&] { return view->exportCsv().count('\n') > 1; })) << entry.id;
        const QString picture = folder.filePath(QLatin1String(entry.id) + QStringLiteral(".png"));
        EXPECT_TRUE(view->exportImage(picture, view->size()));
        EXPECT_GT(QFileInfo(picture).size(), 1000);
    }

    Cursor cursor = workspace.cursor();
    cursor.block = 0;
    workspace.setCursor(cursor);
    ASSERT_TRUE(until([&] { return !window->inspector().blockText().isEmpty(); }));
    EXPECT_EQ(window->inspector().blockFacts()->value("Token range"), "0 to 63");
}

TEST_F(MainWindowTest, StopDuringPrefillEndsTheRunAsStopped) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    fill(*window, 9000, 4);
    QSignalSpy finished(&window->controller(), &SessionController::finished);
    bool sawProgress = false;
    QObject::connect(&window->controller(), &SessionController::progress, window.get(),
                     [&](double fraction, const QString&) {
                         if (window->controller().state() != State::Prefill || fraction <= 0) return;
                         sawProgress = true;
                         window->controller().stop();
                     });
    window->action("run")->trigger();
    ASSERT_TRUE(until([&] { return !finished.isEmpty(); }));
    EXPECT_TRUE(sawProgress);
    EXPECT_FALSE(finished[0][0].toBool());
    EXPECT_EQ(window->controller().state(), State::Idle);
    ASSERT_TRUE(until([&] {
        return window->workspace().current() && window->workspace().current()->row.status == RunStatus::Stopped;
    }));
    EXPECT_TRUE(window->action("run")->isEnabled());
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        QCoreApplication::processEvents();
        ASSERT_TRUE(until([&] { return window->workspace().idle(); }));
        for (const QLabel* label : window->findChildren<QLabel*>())
            EXPECT_FALSE(label->isVisible() && (label->text().contains(QStringLiteral("Waiting for")) ||
                                                label->text().contains(QStringLiteral(" yet."))))
                << entry.id << ": " << label->text().toStdString();
    }
}

TEST_F(MainWindowTest, ThreeWindowsRecordAtOnceAndOneComparesThemMeanwhile) {
    std::vector<std::unique_ptr<MainWindow>> windows;
    std::vector<std::unique_ptr<QSignalSpy>> ended;
    for (int i = 0; i < 3; ++i) {
        windows.push_back(makeWindow());
        ASSERT_TRUE(ready(*windows.back())) << windows.back()->form().problem().toStdString();
        fill(*windows.back(), 200, 5000);
        ended.push_back(std::make_unique<QSignalSpy>(&windows.back()->controller(), &SessionController::finished));
    }
    // So that the traces' names would have the same second.
    for (const auto& window : windows) window->action("run")->trigger();
    const auto pathOf = [&](int i) {
        const OpenRun* run = windows[std::size_t(i)]->workspace().current();
        return run ? run->key.path : QString();
    };
    ASSERT_TRUE(until([&] { return !pathOf(0).isEmpty() && !pathOf(1).isEmpty() && !pathOf(2).isEmpty(); }));
    EXPECT_EQ((QSet<QString>{pathOf(0), pathOf(1), pathOf(2)}).size(), 3) << "each has a file of its own";

    MainWindow& first = *windows[0];
    first.openFiles({pathOf(1), pathOf(2)});
    ASSERT_TRUE(until([&] { return first.workspace().runs().size() == 3; }));
    for (const OpenRun& run : first.workspace().runs())
        if (run.live) first.workspace().setCurrent(run.key);
    std::vector<RunKey> others;
    for (const OpenRun& run : first.workspace().runs())
        if (!run.live) others.push_back(run.key);
    for (const RunKey& other : others) first.workspace().setCompared(other, true);
    first.showView("compare");
    const auto* verdict = first.currentView()->findChild<QLabel*>("verdict");
    ASSERT_TRUE(until([&] {
        return verdict->text().contains("still recording") && verdict->text().contains("steps of C");
    })) << verdict->text().toStdString();

    for (const auto& window : windows) window->action("stop")->trigger();
    for (const auto& spy : ended) ASSERT_TRUE(until([&] { return !spy->isEmpty(); }));
    EXPECT_TRUE(until([&] { return !verdict->text().contains("still recording"); })) << verdict->text().toStdString();
}

TEST_F(MainWindowTest, ClosingWhileItRecordsAsksAndReturnLosesNothing) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    fill(*window, 200, 5000);
    QSignalSpy finished(&window->controller(), &SessionController::finished);
    window->action("run")->trigger();
    ASSERT_TRUE(until([&] { return window->controller().state() == State::Decoding; }));
    const auto answer = [](auto&& act) {
        QTimer::singleShot(0, [act] {
            auto* question = qobject_cast<QMessageBox*>(QApplication::activeModalWidget());
            ASSERT_TRUE(question);
            act(*question);
        });
    };
    answer([](QMessageBox& question) { QTest::keyClick(&question, Qt::Key_Return); });
    EXPECT_FALSE(window->close());
    answer([](QMessageBox& question) { QTest::keyClick(&question, Qt::Key_Escape); });
    EXPECT_FALSE(window->close());
    EXPECT_TRUE(window->isVisible());
    EXPECT_EQ(window->controller().state(), State::Decoding);
    const RunKey run = window->workspace().current()->key;
    answer([](QMessageBox& question) {
        for (QAbstractButton* button : question.buttons())
            if (button->text().contains("Stop")) button->click();
    });
    EXPECT_TRUE(window->close());
    ASSERT_TRUE(until([&] { return !finished.isEmpty(); }));
    EXPECT_EQ(TraceReader(run.path.toStdString()).run(run.runId)->status, RunStatus::Stopped)
        << "what was recorded stays";
}

TEST_F(MainWindowTest, AFolderThatCannotBeWrittenIsOneSentenceInTheForm) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    fill(*window, 200, 4);
    SessionRequest request = window->form().request();
    request.tracePath = QStringLiteral("/proc/nowhere/run.kvtrace");
    QSignalSpy failed(&window->controller(), &SessionController::failed);
    emit window->form().runRequested(request);
    ASSERT_TRUE(until([&] { return !failed.isEmpty(); }));
    EXPECT_TRUE(status(*window).contains("/proc/nowhere")) << status(*window).toStdString();
    EXPECT_EQ(status(*window).count('\n'), 0);
    EXPECT_TRUE(window->form().findChild<QWidget*>("runMessage")->isVisible()) << "where it was started";
    EXPECT_TRUE(window->workspace().runs().empty());
    EXPECT_TRUE(window->action("run")->isEnabled()) << "the next try may go elsewhere";
}

TEST_F(MainWindowTest, ADiskThatIsFullAtOnceGetsNoEmptyTrace) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    fill(*window, 200, 4);
    const QDir traces(SessionController::tracesFolder());
    const QStringList before = traces.entryList(QDir::Files);
    QSignalSpy failed(&window->controller(), &SessionController::failed);
    {
        const FullDisk full(0);
        window->action("run")->trigger();
        ASSERT_TRUE(until([&] { return !failed.isEmpty(); }));
    }
    EXPECT_TRUE(status(*window).contains(traces.path())) << status(*window).toStdString();
    EXPECT_EQ(traces.entryList(QDir::Files), before);
    EXPECT_TRUE(window->action("run")->isEnabled());
}

TEST_F(MainWindowTest, ADiskThatBecomesFullEndsInASentenceAndKeepsWhatWasRecorded) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    fill(*window, 200, 5000);
    QSignalSpy failed(&window->controller(), &SessionController::failed);
    {
        const FullDisk full(1 << 20);
        window->action("run")->trigger();
        ASSERT_TRUE(until([&] { return !failed.isEmpty(); }));
    }
    EXPECT_TRUE(status(*window).startsWith("recording stopped: ")) << status(*window).toStdString();
    EXPECT_EQ(status(*window).count('\n'), 0);
    ASSERT_TRUE(window->workspace().current());
    const RunKey key = window->workspace().current()->key;
    EXPECT_TRUE(status(*window).contains(QFileInfo(key.path).fileName())) << status(*window).toStdString();
    const auto row = TraceReader(key.path.toStdString()).run(key.runId);
    ASSERT_TRUE(row);
    EXPECT_GT(row->steps, 1) << "what was recorded stays";
    EXPECT_NE(row->status, RunStatus::Finished);
}

TEST_F(MainWindowTest, PauseStepResumeAndStop) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    SessionController& controller = window->controller();
    QSignalSpy finished(&controller, &SessionController::finished);
    ASSERT_TRUE(startsPaused(*window));
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.current() && workspace.current()->row.steps == 1; }));
    for (int steps = 2; steps <= 4; ++steps) {
        window->action("step")->trigger();
        ASSERT_TRUE(until([&] { return workspace.current()->row.steps == steps; }));
        EXPECT_EQ(controller.state(), State::Paused);
    }
    window->action("pause")->trigger(); // resumes
    ASSERT_TRUE(until([&] { return controller.state() == State::Decoding; }));
    ASSERT_TRUE(until([&] { return workspace.current()->row.steps > 8; }));
    window->action("pause")->trigger();
    ASSERT_TRUE(until([&] { return controller.state() == State::Paused; }));
    window->action("stop")->trigger();
    ASSERT_TRUE(until([&] { return !finished.isEmpty(); }));
    EXPECT_FALSE(finished[0][0].toBool());
    ASSERT_TRUE(until([&] { return workspace.current()->row.status == RunStatus::Stopped; }));
}

TEST_F(MainWindowTest, ACalibratedModelWaitsForThePausedSessionAndOutlivesItsStop) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    SessionController& controller = window->controller();
    ASSERT_TRUE(startsPaused(*window));
    const auto calibrated = Model::load(window->form().modelName().toStdString());
    controller.adoptModel(window->form().modelName(), calibrated);
    EXPECT_EQ(controller.state(), State::Paused);
    EXPECT_TRUE(window->action("step")->isEnabled());
    EXPECT_NE(controller.model(), calibrated);
    window->action("stop")->trigger();
    ASSERT_TRUE(until([&] { return controller.model() == calibrated; }));
    EXPECT_TRUE(window->form().hasModel());
}

TEST_F(MainWindowTest, AModelThatIsChosenWhileASessionRunsWaitsForItsEnd) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    SessionController& controller = window->controller();
    ASSERT_TRUE(startsPaused(*window));
    QSignalSpy states(&controller, &SessionController::stateChanged),
        loaded(&controller, &SessionController::modelLoaded);
    controller.loadModel(window->form().modelName());
    EXPECT_EQ(controller.state(), State::Paused);
    EXPECT_TRUE(states.isEmpty());
    EXPECT_TRUE(window->action("step")->isEnabled());
    window->action("stop")->trigger();
    EXPECT_TRUE(until([&] { return loaded.size() == 1 && controller.state() == State::Idle; }))
        << "and is loaded then, though the session was stopped";
}

TEST_F(MainWindowTest, AMissingModelIsOneSentenceInTheForm) {
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    window->controller().loadModel("/nowhere/model");
    auto* message = window->form().findChild<QWidget*>("modelMessage");
    ASSERT_TRUE(until([&] { return !message->isHidden(); }));
    EXPECT_TRUE(status(*window).contains("/nowhere/model"));
    EXPECT_EQ(status(*window).count('\n'), 0);
    EXPECT_FALSE(window->action("run")->isEnabled());
}

TEST_F(MainWindowTest, ARunReadsTheModelsFilesAsTheyAreNow) {
    const QString model = folder.filePath("model");
    ASSERT_TRUE(QDir().mkpath(model));
    const QDir source(QString::fromStdString(test::source("resources/models/nosa-tiny")));
    for (const QString& file : source.entryList(QDir::Files)) {
        ASSERT_TRUE(QFile::copy(source.filePath(file), model + '/' + file));
        QFile(model + '/' + file).setPermissions(QFile::ReadOwner | QFile::WriteOwner);
    }
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window));
    window->form().setValues({{"model", model}});
    ASSERT_TRUE(until([&] { return window->controller().model() && !window->controller().model()->embedded(); }));
    ASSERT_TRUE(ready(*window));
    fill(*window, 200, 2);
    ASSERT_TRUE(ready(*window));
    const auto runs = [&] {
        QSignalSpy finished(&window->controller(), &SessionController::finished);
        QSignalSpy failed(&window->controller(), &SessionController::failed);
        window->action("run")->trigger();
        return until([&] { return !finished.empty() || !failed.empty(); }) && failed.empty();
    };
    ASSERT_TRUE(runs());
    const auto loaded = window->controller().model();
    ASSERT_TRUE(runs());
    EXPECT_EQ(window->controller().model(), loaded) << "nothing has changed";

    QFile config(model + "/config.json");
    ASSERT_TRUE(config.open(QIODevice::ReadOnly));
    QByteArray text = config.readAll();
    config.close();
    ASSERT_TRUE(text.contains("\"silu\""));
    ASSERT_TRUE(config.open(QIODevice::WriteOnly));
    config.write(text.replace("\"silu\"", "\"gelu\""));
    config.close();
    EXPECT_FALSE(runs()) << "the folder now holds a model that cannot run, and the one before ran instead";
    EXPECT_TRUE(status(*window).contains("gelu")) << status(*window).toStdString();

    ASSERT_TRUE(QDir(model).removeRecursively());
    EXPECT_FALSE(runs()) << "the folder is gone";
    EXPECT_TRUE(status(*window).contains(model)) << status(*window).toStdString();
    EXPECT_EQ(status(*window).count('\n'), 0);
}

TEST_F(MainWindowTest, AFileThatIsNoTraceIsRefusedWhereItWasOpened) {
    const auto window = makeWindow();
    const QString path = folder.filePath("broken.kvtrace");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write("this is no database");
    file.close();
    window->openFiles({path});
    auto* message = window->findChild<QWidget*>("runListMessage");
    ASSERT_TRUE(until([&] { return !message->isHidden(); }));
    EXPECT_TRUE(status(*window).contains("broken.kvtrace"));
    EXPECT_TRUE(window->workspace().runs().empty());
}

TEST_F(MainWindowTest, ADroppedTraceOpens) {
    const QString path = folder.filePath("small.kvtrace");
    recordSmallTrace(path);
    const auto window = makeWindow();
    QMimeData data;
    data.setUrls({QUrl::fromLocalFile(path)});
    QDragEnterEvent enter(QPoint(50, 50), Qt::CopyAction, &data, Qt::LeftButton, {});
    QApplication::sendEvent(window.get(), &enter);
    EXPECT_TRUE(enter.isAccepted());
    QDropEvent drop(QPointF(50, 50), Qt::CopyAction, &data, Qt::LeftButton, {});
    QApplication::sendEvent(window.get(), &drop);
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    EXPECT_NE(window->currentView(), nullptr);
    ASSERT_TRUE(until([&] { return window->tokens().strip()->lastStep() == 6; }));
}

TEST_F(MainWindowTest, TheStripsRangeIsSummedInTheInspector) {
    const QString path = folder.filePath("small.kvtrace");
    recordSmallTrace(path); // 2 layers x 2 heads x 2 blocks: 8 selected a step, 4 misses from step 2 on
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->tokens().strip()->lastStep() == 6; }));
    TokenStrip* strip = window->tokens().strip();
    QTest::mouseClick(strip->viewport(), Qt::LeftButton, {}, strip->revealStep(2));
    QTest::mouseClick(strip->viewport(), Qt::LeftButton, Qt::ShiftModifier, strip->revealStep(4));
    EXPECT_EQ(window->workspace().cursor().firstStep, 2);
    EXPECT_EQ(window->workspace().cursor().lastStep, 4);
    FactTable* facts = window->inspector().stepFacts();
    ASSERT_TRUE(until([&] { return facts->value("Misses") == "12"; }));
    EXPECT_EQ(facts->value("Hits"), "12");
    EXPECT_EQ(facts->value("Hit rate"), "50.0 %");
    EXPECT_EQ(facts->value("Locality"), "1.000");
}

TEST_F(MainWindowTest, TheLastSessionComesBackAndFreshIgnoresIt) {
    const QString path = folder.filePath("small.kvtrace");
    recordSmallTrace(path);
    {
        const auto window = makeWindow(false);
        ASSERT_TRUE(ready(*window));
        fill(*window, 640, 5);
        window->openFiles({path});
        ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
        window->showView(QLatin1String(views()[1].id));
        window->setTheme("dark");
        window->resize(1234, 800);
        EXPECT_TRUE(window->close());
    }
    {
        const auto window = makeWindow(false);
        ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; })) << "the open trace comes back";
        EXPECT_EQ(window->workspace().current()->key.path, QFileInfo(path).absoluteFilePath());
        EXPECT_EQ(window->form().findChild<QSpinBox*>("needleTokens")->value(), 640);
        EXPECT_EQ(window->form().findChild<QSpinBox*>("maxNewTokens")->value(), 5);
        EXPECT_EQ(window->findChild<QTabWidget*>("views")->currentIndex(), 1);
        EXPECT_TRUE(window->action("theme")->isChecked());
        EXPECT_EQ(window->size(), QSize(1234, 800));
    }
    {
        const auto window = makeWindow(true);
        EXPECT_TRUE(ready(*window));
        EXPECT_TRUE(window->workspace().runs().empty());
        EXPECT_NE(window->form().findChild<QSpinBox*>("needleTokens")->value(), 640);
        EXPECT_FALSE(window->action("theme")->isChecked());
        window->close();
    }
    EXPECT_EQ(Settings(false, folder.filePath("desktop.ini")).load().theme, "dark")
        << "a fresh start leaves it untouched";
    makeWindow()->setTheme("light");
}

TEST_F(MainWindowTest, F1ShowsEveryShortcutAndDefinitionsAreOneClickAway) {
    const auto window = makeWindow();
    window->action("shortcuts")->trigger();
    EXPECT_TRUE(window->help().isVisible());
    const QString text = window->help().text();
    for (const char* keys : {"F5", "F6", "F10", "Shift+F5", "Ctrl+O"}) EXPECT_TRUE(text.contains(keys)) << keys;
    for (const ViewEntry& entry : views()) EXPECT_TRUE(text.contains(entry.title)) << entry.title;
    QTest::keyClick(&window->help(), Qt::Key_Escape);
    EXPECT_FALSE(window->help().isVisible());
    emit window->inspector().definitionRequested("locality");
    EXPECT_TRUE(window->help().isVisible());
    for (const Definition& definition : definitions())
        EXPECT_TRUE(window->help().text().contains(QString::fromUtf8(definition.title)));
    window->action("about")->trigger();
    EXPECT_TRUE(window->help().text().contains("GPL-3.0-or-later"));
}

TEST_F(MainWindowTest, AboutNamesEveryLibraryAndItsLicence) {
    const auto window = makeWindow();
    window->action("about")->trigger();
    const QString about = window->help().text();
    std::ifstream document(test::source("docs/third-party.md"));
    int libraries = 0;
    for (std::string line; std::getline(document, line) && line.rfind("| data ", 0) != 0;) {
        const QStringList cells = QString::fromStdString(line).split(QLatin1Char('|'), Qt::SkipEmptyParts);
        if (cells.size() != 3 || line.rfind("| library ", 0) == 0 || line.rfind("| ---", 0) == 0) continue;
        if (cells[2].contains(QStringLiteral("in no package"))) continue; // the tests' own
        for (const QString& cell : cells)
            EXPECT_TRUE(about.contains(cell.trimmed())) << cell.toStdString() << " of " << line;
        ++libraries;
    }
    EXPECT_GE(libraries, 10);
}

TEST_F(MainWindowTest, TheHelpKeepsTheKeysAndGivesTheFocusBack) {
    const auto window = makeWindow();
    window->activateWindow();
    ASSERT_TRUE(QTest::qWaitForWindowActive(window.get()));
    auto* kind = window->form().findChild<QComboBox*>("promptKind");
    kind->setFocus();
    ASSERT_EQ(window->focusWidget(), kind);
    window->action("shortcuts")->trigger();
    QSet<QWidget*> visited;
    for (int i = 0; i < 12; ++i) {
        QTest::keyClick(window->focusWidget(), i < 8 ? Qt::Key_Tab : Qt::Key_Backtab);
        ASSERT_TRUE(window->help().isAncestorOf(window->focusWidget())) << "what lies behind it cannot be seen";
        visited << window->focusWidget();
    }
    EXPECT_EQ(visited.size(), 5) << "the text, three pages and the way out";
    QTest::keyClick(window->focusWidget(), Qt::Key_Escape);
    EXPECT_FALSE(window->help().isVisible());
    EXPECT_EQ(window->focusWidget(), kind);
    window->action("shortcuts")->trigger();
    window->action("shortcuts")->trigger(); // F1 again
    EXPECT_FALSE(window->help().isVisible());
    EXPECT_EQ(window->focusWidget(), kind);
}

TEST_F(MainWindowTest, ASessionsEndIsSaidUntilAnotherRunIsShown) {
    const QString path = folder.filePath("small.kvtrace");
    recordSmallTrace(path);
    const auto window = makeWindow();
    ASSERT_TRUE(ready(*window)) << window->form().problem().toStdString();
    fill(*window, 200, 3);
    QTest::mouseClick(window->form().findChild<QPushButton*>("runButton"), Qt::LeftButton);
    ASSERT_TRUE(until([&] { return status(*window) == QStringLiteral("The session finished."); }))
        << status(*window).toStdString();
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.current() && workspace.idle(); }));
    EXPECT_EQ(status(*window), QStringLiteral("The session finished."));
    const RunKey own = workspace.current()->key;
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return !(workspace.current()->key == own) && workspace.idle(); }));
    EXPECT_EQ(status(*window), QString()) << "it is not about this run";
}

TEST_F(MainWindowTest, ViewShortcutsSwitchTabs) {
    const QString path = folder.filePath("small.kvtrace");
    recordSmallTrace(path);
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    for (std::size_t tab = 0; tab < views().size(); ++tab) {
        QTest::keySequence(window.get(), QKeySequence(QLatin1String(views()[tab].shortcut)));
        EXPECT_EQ(window->findChild<QTabWidget*>("views")->currentIndex(), int(tab));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
