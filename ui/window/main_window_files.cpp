// Opens files, takes dropped files, and exports reports and views from the main window.
#include "ui/window/main_window.h"

#include "profiler/import/import.h"
#include "profiler/read/step_kind.h"
#include "ui/frame/home_window.h"
#include "ui/frame/save_path.h"
#include "ui/frame/view.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/export_dialog.h"
#include "ui/widgets/import_bar.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/session_form.h"
#include "ui/window/panels.h"
#include "ui/window/status_line.h"

#include <QDir>
#include <QDockWidget>
#include <QDragEnterEvent>
#include <QFileDialog>
#include <QFileInfo>
#include <QMimeData>
#include <QProcess>
#include <QStatusBar>
#include <QUrl>

namespace kvscope::ui {
namespace {

/// The local files among the dragged items, whatever they are. The content of each file is looked at when it is opened,
/// so that an unsuitable file gets a message instead of being refused silently.
QStringList filesIn(const QMimeData* data) {
    QStringList paths;
    for (const QUrl& url : data->urls())
        if (url.isLocalFile()) paths << url.toLocalFile();
    return paths;
}

constexpr int kMostOfAFolder = 20;

/// The traces in a folder by name, without those of its subfolders.
QStringList tracesIn(const QString& folder) {
    QStringList paths;
    const QDir dir(folder);
    for (const QString& name : dir.entryList({QStringLiteral("*.kvtrace")}, QDir::Files | QDir::Readable, QDir::Name))
        paths << dir.absoluteFilePath(name);
    return paths;
}

/// The path in the home folder that a save dialog suggests: "TRACE-NAME", or "NAME" without a run.
QString suggestedPath(const OpenRun* run, const QString& name) {
    const QString trace = run ? QFileInfo(run->key.path).completeBaseName() + QLatin1Char('-') : QString();
    return QDir::home().filePath(trace + name);
}

/// Takes files that the user dropped on the widget `over` of the window. One text file dropped on the prompt becomes
/// the prompt; all other files are opened.
void takeFiles(MainWindow& window, const QStringList& files, const QWidget* over) {
    const bool text = over && files.size() == 1 && !findImportFormat(files.front().toStdString());
    if (!text || !window.form().takePrompt(files.front(), over)) window.openFiles(files);
}

/// The import bar of the window. It is made when the user opens the first file of another tool.
ImportBar* importBarOf(MainWindow& window) {
    if (auto* known = window.findChild<ImportBar*>()) return known;
    auto* bar = new ImportBar;
    window.statusBar()->addPermanentWidget(bar);
    bar->hide();
    Workspace* workspace = &window.workspace();
    QObject::connect(bar, &ImportBar::imported, workspace, &Workspace::open);
    QObject::connect(bar, &ImportBar::failed, workspace, &Workspace::openFailed);
    QObject::connect(bar, &ImportBar::cancelled, &window, [&window](const QString& path) {
        window.showMessage(MainWindow::tr("Importing %1 was cancelled.").arg(path));
    });
    return bar;
}

} // namespace

void MainWindow::openFiles(const QStringList& paths) {
    if (!paths.isEmpty()) forgetOpenProblems();
    QStringList files;
    for (const QString& path : paths) {
        const QFileInfo info(path);
        if (isModel(path) && tracesIn(info.absoluteFilePath()).isEmpty()) {
            panels_->dock(Panel::Session)->show();
            form_->chooseModel(info.absoluteFilePath());
            continue;
        }
        if (!info.isDir()) {
            files << info.absoluteFilePath();
            continue;
        }
        const QStringList traces = tracesIn(info.absoluteFilePath());
        if (traces.isEmpty())
            emit workspace_->openFailed(path, tr("%1 is a folder without .kvtrace files and without a model's "
                                                 "config.json; open the files themselves")
                                                  .arg(QDir::toNativeSeparators(path)));
        if (traces.size() > kMostOfAFolder)
            showMessage(tr("%1 holds %2 traces; the first %3 are opened.")
                            .arg(QDir::toNativeSeparators(path))
                            .arg(traces.size())
                            .arg(kMostOfAFolder));
        files << traces.mid(0, kMostOfAFolder);
    }
    for (const QString& file : files) {
        if (ImportBar::isNeededFor(file))
            importBarOf(*this)->add(file);
        else
            workspace_->open(file);
        if (QFileInfo::exists(file)) saved_.recentFiles = withRecent(saved_.recentFiles, file);
    }
    updateRecent();
}

/// Hides the messages about files that could not be opened. Called when the user opens other files.
void MainWindow::forgetOpenProblems() {
    runs_->showProblem({});
    status_->forget(StatusLine::About::OpenedFiles);
}

void MainWindow::chooseFiles() {
    openFiles(
        QFileDialog::getOpenFileNames(this, tr("Open traces"), SessionController::tracesFolder(),
                                      tr("Traces and timelines (*.kvtrace *.json *.json.gz *.sqlite);;All files (*)")));
}

/// Handles a drag of files over the widget `over` of the window. Without this, editors would insert the name of a
/// dropped file into their text.
/// @return whether the event was handled here
bool MainWindow::takesDrag(QWidget* over, QEvent* event) {
    auto* drag = static_cast<QDropEvent*>(event); // QDragEnterEvent and QDragMoveEvent derive from QDropEvent
    const QStringList files = filesIn(drag->mimeData());
    if (homeOf(*over) != this || over == this || files.isEmpty()) return false;
    drag->acceptProposedAction();
    if (event->type() != QEvent::Drop) return true;
    takeFiles(*this, files, over);
    return true;
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
    if (!filesIn(event->mimeData()).isEmpty()) event->acceptProposedAction();
}

void MainWindow::dropEvent(QDropEvent* event) {
    takeFiles(*this, filesIn(event->mimeData()), childAt(event->position().toPoint()));
    event->acceptProposedAction();
}

void MainWindow::chooseViewExport() {
    if (!currentView()) return;
    auto* dialog = new ExportDialog(*currentView(), suggestedPath(workspace_->current(), currentView()->id()),
                                    settings_.fresh() ? QString() : exportSettingsFile(), this);
    connect(dialog, &ExportDialog::saved, this, [this](const QString& path) { showMessage(tr("Saved %1").arg(path)); });
    dialog->show();
}

void MainWindow::chooseReportExport() {
    const OpenRun* run = workspace_->current();
    if (!run) return;
    const QString path =
        askSavePath(this, tr("Export a report"), suggestedPath(run, QStringLiteral("report.html")),
                    {{tr("HTML, for browsers"), QStringLiteral("html")}, {tr("PDF"), QStringLiteral("pdf")}});
    if (!path.isEmpty()) exportReport(path);
}

void MainWindow::exportReport(const QString& path) {
    const OpenRun* run = workspace_->current();
    if (!run) {
        showMessage(tr("There is no run to report on: open a trace or run a session first."), true);
        return;
    }
    QStringList arguments{QStringLiteral("report"), run->key.path};
    for (const OpenRun* side : workspace_->sides())
        if (!arguments.contains(side->key.path)) arguments << side->key.path;
    if (coldSteps() == ColdSteps::Counted) arguments << QStringLiteral("--count-cold"); // as the window counts
    arguments << QStringLiteral("-o") << path;
    auto* process = new QProcess(this);
    showMessage(tr("Writing the report…"));
    connect(process, &QProcess::finished, this, [this, process, path](int code, QProcess::ExitStatus status) {
        const bool good = status == QProcess::NormalExit && code == 0;
        const QString reason = QString::fromUtf8(process->readAllStandardError()).trimmed();
        showMessage(good ? tr("Saved %1").arg(path) : tr("The report was not written: %1").arg(reason), !good);
        process->deleteLater();
    });
    connect(process, &QProcess::errorOccurred, this, [this, process](QProcess::ProcessError error) {
        if (error != QProcess::FailedToStart) return; // after all other errors finished() is emitted
        showMessage(tr("The report was not written: %1").arg(process->errorString()), true);
        process->deleteLater();
    });
    process->start(reportProgram_, arguments);
}

} // namespace kvscope::ui
