// Saves the state of a window while the window is open, so that a crash or a log-out loses nothing.
#include "ui/session/run_queue.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/trace_facts.h"
#include "ui/widgets/welcome_page.h"
#include "ui/window/crash_recovery.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"
#include "ui/window/view_area.h"
#include "ui/window/window_server.h"

#include <QApplication>
#include <QDebug>
#include <QDockWidget>

#include <utility>

namespace kvscope::ui {

namespace {

constexpr int kSoonMs = 1000;        // from the last change to saving
constexpr int kRegularlyMs = 30'000; // between two saves of what emits no signal when it changes, e.g. the prompt
constexpr int kTracesListed = 6;     // traces listed on the start page

/// The visible windows, with the active one last: settings saved last win, so the next start opens the files of the
/// active window.
QList<MainWindow*> windowsToSave() {
    const QWidget* active = QApplication::activeWindow();
    QList<MainWindow*> windows;
    for (QWidget* widget : QApplication::topLevelWidgets())
        if (auto* window = qobject_cast<MainWindow*>(widget); window && window->isVisible())
            widget == active ? windows.append(window) : windows.prepend(window);
    return windows;
}

} // namespace

void MainWindow::keepSaved() {
    connect(crash_, &CrashRecovery::openRequested, this, &MainWindow::openFiles);
    connect(crash_, &CrashRecovery::queueRequested, this, &MainWindow::queueAgain);
    connect(crash_, &CrashRecovery::said, this, &MainWindow::showMessage);
    connect(crash_, &CrashRecovery::discarded, this, [this](const QString& trace) {
        saved_.recentFiles.removeAll(trace);
        updateRecent();
        listTraces();
    });
    if (settings_.fresh()) return;
    crash_->beginJournal(settings_.journalFolder());
    connect(workspace_.get(), &Workspace::runsChanged, this, &MainWindow::writeJournal);
    // aboutToQuit is emitted at the end of the program, also after a signal. At a log-out, the system asks for saving
    // with commitDataRequest and may still cancel the log-out.
    connect(qApp, &QCoreApplication::aboutToQuit, this, &MainWindow::endAll);
    connect(qApp, &QGuiApplication::commitDataRequest, this, &MainWindow::saveSession);
    saving_.soon.setSingleShot(true);
    saving_.soon.setInterval(kSoonMs);
    connect(&saving_.soon, &QTimer::timeout, this, &MainWindow::saveChanges);
    saving_.regularly.setInterval(kRegularlyMs);
    connect(&saving_.regularly, &QTimer::timeout, this, &MainWindow::saveChanges);
    saving_.regularly.start();
    const auto soon = [this] { saving_.soon.start(); };
    connect(workspace_.get(), &Workspace::runsChanged, this, soon);
    connect(area_, &ViewArea::frontChanged, this, soon);
    connect(area_, &ViewArea::rearranged, this, soon);
    for (const QDockWidget* dock : panels_->docks()) {
        connect(dock, &QDockWidget::visibilityChanged, this, soon);
        connect(dock, &QDockWidget::dockLocationChanged, this, soon);
        connect(dock, &QDockWidget::topLevelChanged, this, soon);
    }
}

/// Saves the changes of this window unless another window is active: each window would replace the saved open files by
/// its own.
void MainWindow::saveChanges() {
    if (ended_ || !isVisible() || (!isActiveWindow() && QApplication::activeWindow() != nullptr)) return;
    collectSession();
    if (saved_ == saving_.stored) return;
    writeSettings();
}

void MainWindow::writeJournal() {
    if (!ended_) crash_->writeJournal(waitingRuns());
}

void MainWindow::endNow() {
    if (ended_) return;
    const QByteArray waiting = waitingRuns();
    queue_->setHeld(true);
    controller_->stop();
    served_->stopAndWait();
    if (const QString problem = saveSession(); !problem.isEmpty())
        qWarning().noquote() << problem; // nobody answers a dialog when the program is told to end
    crash_->endJournal(waiting);
    ended_ = true; // closing the window now asks nothing and saves nothing
}

void MainWindow::endAll() {
    for (MainWindow* window : windowsToSave()) window->endNow();
}

void MainWindow::listTraces() {
    readTraceFacts(
        this, [folder = SessionController::tracesFolder()] { return newestTraces(folder, kTracesListed); },
        [this](std::vector<TraceFacts> facts) {
            for (TraceFacts& each : facts) each.stale = each.stale || crash_->isLeftBehind(each);
            welcome_->setTraces(std::move(facts));
        });
}

} // namespace kvscope::ui
