// Saves the state of a window while the window is open, so that a crash or a log-out loses nothing, and offers at the
// next start what a crash has left behind.
#include "ui/frame/units.h"
#include "ui/session/request_json.h"
#include "ui/session/run_queue.h"
#include "ui/session/server_process.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/recovery_bar.h"
#include "ui/widgets/trace_facts.h"
#include "ui/widgets/welcome_page.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"
#include "ui/window/session_journal.h"
#include "ui/window/view_area.h"

#include <QApplication>
#include <QDebug>
#include <QDir>
#include <QDockWidget>
#include <QFile>
#include <QFileInfo>
#include <QMessageBox>
#include <QPushButton>

#include <algorithm>
#include <memory>

namespace kvscope::ui {

namespace {

constexpr int kSoonMs = 1000;        // from the last change to saving
constexpr int kRegularlyMs = 30'000; // between two saves of what emits no signal when it changes, e.g. the prompt
constexpr int kTracesListed = 6;     // traces listed on the start page
constexpr qsizetype kNamesShown = 4;

/// The files of a trace: SQLite keeps two files beside the trace while not everything is in the trace itself.
QStringList filesOf(const QString& trace) {
    QStringList files;
    for (const char* suffix : {"", "-wal", "-shm"})
        if (const QString file = trace + QLatin1String(suffix); QFileInfo::exists(file)) files << file;
    return files;
}

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

QStringList namesIn(const QByteArray& waiting) {
    QStringList names;
    for (const auto& [name, request] : requestsOf(waiting)) names << name;
    return names;
}

} // namespace

void MainWindow::keepSaved() {
    if (settings_.fresh()) return;
    journal_ = std::make_unique<SessionJournal>(settings_.journalFolder());
    connect(workspace_.get(), &Workspace::runsChanged, this, &MainWindow::writeJournal);
    // aboutToQuit is emitted at the end of the program, also after a signal. At a log-out, the system asks for saving
    // with commitDataRequest and may still cancel the log-out.
    connect(qApp, &QCoreApplication::aboutToQuit, this, &MainWindow::endAll);
    connect(qApp, &QGuiApplication::commitDataRequest, this, &MainWindow::saveSession);
    saveTimer_.setSingleShot(true);
    saveTimer_.setInterval(kSoonMs);
    connect(&saveTimer_, &QTimer::timeout, this, &MainWindow::saveChanges);
    regularTimer_.setInterval(kRegularlyMs);
    connect(&regularTimer_, &QTimer::timeout, this, &MainWindow::saveChanges);
    regularTimer_.start();
    const auto soon = [this] { saveTimer_.start(); };
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
    if (saved_ == stored_) return;
    writeSettings();
}

void MainWindow::writeJournal() {
    if (!journal_ || ended_) return;
    SessionJournal::Entry entry;
    for (const OpenRun& run : workspace_->runs()) {
        if (!entry.open.contains(run.key.path)) entry.open << run.key.path;
        if (run.live && !entry.recording.contains(run.key.path)) entry.recording << run.key.path;
    }
    entry.waiting = waitingRuns();
    journal_->write(entry);
}

void MainWindow::endNow() {
    if (ended_) return;
    const QByteArray waiting = waitingRuns();
    queue_->setHeld(true);
    controller_->stop();
    if (server_) server_->stopAndWait();
    if (const QString problem = saveSession(); !problem.isEmpty())
        qWarning().noquote() << problem; // nobody answers a dialog when the program is told to end
    if (journal_) journal_->end(waiting);
    ended_ = true; // closing the window now asks nothing and saves nothing
}

void MainWindow::endAll() {
    for (MainWindow* window : windowsToSave()) window->endNow();
}

QStringList MainWindow::findLeftBehind() {
    QStringList offered;
    if (!journal_) return offered;
    for (SessionJournal::LeftBehind& left : journal_->leftBehind()) {
        offered += left.entry().open + left.entry().recording;
        auto kept = std::make_shared<SessionJournal::LeftBehind>(std::move(left));
        const QStringList recording = kept->entry().recording;
        readTraceFacts(
            this, [recording] { return recording; },
            [this, kept](const std::vector<TraceFacts>& facts) { offerLeftBehind(kept, facts); });
        leftBehind_.push_back(std::move(kept)); // the journal stays locked while this window may answer the offers
    }
    return offered;
}

void MainWindow::offerLeftBehind(const std::shared_ptr<SessionJournal::LeftBehind>& left,
                                 const std::vector<TraceFacts>& recordings) {
    QStringList others = left->entry().open;
    auto open = std::make_shared<int>(0); // number of offers that are not answered yet
    const auto answered = [left, open] {
        if (--*open == 0) left->forget();
        return true;
    };
    // If the user has opened all files of an offer in another way, the offer is withdrawn.
    const auto withdrawWhenOpen = [this, answered](QWidget* line, const QStringList& files) {
        connect(workspace_.get(), &Workspace::runsChanged, line, [this, line, files, answered] {
            const auto isOpen = [this](const QString& file) {
                return std::any_of(workspace_->runs().begin(), workspace_->runs().end(),
                                   [&](const OpenRun& run) { return run.key.path == file; });
            };
            if (line->isHidden() || !std::all_of(files.begin(), files.end(), isOpen)) return;
            answered();
            recovery_->withdraw(line);
        });
    };
    for (const TraceFacts& facts : recordings) {
        const bool interrupted = facts.status == QLatin1String(nameOf(RunStatus::Running));
        const bool lost = interrupted || facts.runs == 0;
        if (!QFileInfo::exists(facts.path)) others.removeAll(facts.path);
        // A trace that was ended properly is offered with the other open files.
        if (!QFileInfo::exists(facts.path) || !lost) continue;
        others.removeAll(facts.path);
        ++*open;
        std::vector<RecoveryBar::Choice> choices;
        if (interrupted)
            choices.push_back({tr("Open"), tr("Show what was recorded"), [this, path = facts.path, answered] {
                                   openFiles({path});
                                   return answered();
                               }});
        choices.push_back({tr("Discard"), tr("Move the trace to the trash"),
                           [this, path = facts.path, answered] { return discardTrace(path) && answered(); }});
        QWidget* line =
            recovery_->offer(interrupted ? tr("Recovered: %1, %2").arg(facts.name, countOf(facts))
                                         : tr("Left behind: %1, a recording without anything in it").arg(facts.name),
                             tr("KVScope ended while it recorded %1. What was written until then is there.")
                                 .arg(QDir::toNativeSeparators(facts.path)),
                             choices);
        if (interrupted) withdrawWhenOpen(line, {facts.path});
    }
    others.erase(
        std::remove_if(others.begin(), others.end(), [](const QString& path) { return !QFileInfo::exists(path); }),
        others.end());
    others.removeDuplicates();
    if (!others.isEmpty()) {
        ++*open;
        QStringList names;
        for (const QString& path : others.mid(0, kNamesShown)) names << QFileInfo(path).fileName();
        if (others.size() > kNamesShown) names << tr("and %1 more").arg(others.size() - kNamesShown);
        QWidget* line = recovery_->offer(
            others.size() == 1 ? tr("Open when KVScope ended unexpectedly: %1").arg(names.front())
                               : tr("%1 traces were open when KVScope ended unexpectedly: %2")
                                     .arg(QString::number(others.size()), names.join(QStringLiteral(", "))),
            others.join(QLatin1Char('\n')),
            {{tr("Open"), tr("Open them again"),
              [this, others, answered] {
                  openFiles(others);
                  return answered();
              }},
             {tr("Not Now"), tr("Leave them closed; they stay where they are"), answered}});
        withdrawWhenOpen(line, others);
    }
    const QByteArray waiting = left->entry().waiting;
    if (const QStringList names = namesIn(waiting); !names.isEmpty()) {
        ++*open;
        recovery_->offer(names.size() == 1 ? tr("A run waited in the queue when KVScope ended: %1").arg(names.front())
                                           : tr("%1 runs waited in the queue when KVScope ended").arg(names.size()),
                         names.join(QLatin1Char('\n')),
                         {{tr("Queue Again"), tr("Run them one after the other, into a new trace"),
                           [this, waiting, answered] {
                               queueAgain(waiting);
                               return answered();
                           }},
                          {tr("Not Now"), tr("Forget them"), answered}});
    }
    if (*open == 0) left->forget();
}

bool MainWindow::discardTrace(const QString& path) {
    std::vector<RunKey> shown;
    for (const OpenRun& run : workspace_->runs())
        if (run.key.path == path) shown.push_back(run.key);
    for (const RunKey& key : shown) workspace_->close(key);
    const QStringList files = filesOf(path);
    const auto trashed = [](const QString& file) { return QFile::moveToTrash(file); };
    const bool moved = std::all_of(files.begin(), files.end(), trashed);
    if (!moved) {
        QMessageBox question(QMessageBox::Question, tr("Delete the trace?"), {}, QMessageBox::NoButton, this);
        question.setTextFormat(Qt::PlainText);
        question.setText(
            tr("%1 cannot be moved to the trash. Delete it for good?").arg(QDir::toNativeSeparators(path)));
        const QAbstractButton* remove = question.addButton(tr("Delete"), QMessageBox::DestructiveRole);
        question.setDefaultButton(question.addButton(tr("Keep"), QMessageBox::RejectRole));
        question.exec();
        if (question.clickedButton() != remove) return false;
        for (const QString& file : filesOf(path))
            if (!QFile::remove(file)) {
                showMessage(tr("%1 could not be deleted; is its folder writable?").arg(file), true);
                return false;
            }
    }
    showMessage(moved ? tr("%1 was moved to the trash.").arg(QFileInfo(path).fileName())
                      : tr("%1 was deleted.").arg(QFileInfo(path).fileName()));
    saved_.recentFiles.removeAll(path);
    updateRecent();
    listTraces();
    return true;
}

void MainWindow::listTraces() {
    readTraceFacts(
        this, [folder = SessionController::tracesFolder()] { return newestTraces(folder, kTracesListed); },
        [this](std::vector<TraceFacts> facts) {
            // The programs that recorded the traces in these journals are known to be gone, even if their last sign of
            // life was a moment ago.
            for (TraceFacts& each : facts)
                for (const auto& left : leftBehind_)
                    each.stale = each.stale || (left->entry().recording.contains(each.path) &&
                                                each.status == QLatin1String(nameOf(RunStatus::Running)));
            welcome_->setTraces(std::move(facts));
        });
}

} // namespace kvscope::ui
