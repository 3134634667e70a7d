// Forks: the shown run goes on from the cursor's step under other settings, and is compared with itself.
#include "ui/session/run_again.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/fork_dialog.h"
#include "ui/window/main_window.h"

#include "base/error.h"
#include "profiler/run/fork.h"

#include <QAction>
#include <QDir>
#include <QFileInfo>

namespace kvscope::ui {

QString MainWindow::whyNoFork() const {
    const OpenRun* run = workspace_->current();
    if (!run) return tr("No run is open.");
    if (session_.active) return tr("A session is running. Stop it or wait for its end.");
    if (const QString unread = whyUnread(*run); !unread.isEmpty()) return unread;
    return QString::fromStdString(kvscope::whyNoFork(run->row));
}

void MainWindow::forkHere() {
    const OpenRun* run = workspace_->current();
    const QString refusal = whyNoFork();
    if (!run || !refusal.isEmpty()) return showMessage(refusal, true);
    try {
        const RecordedSettings recorded = recordedSettings(run->row);
        const QString model = QString::fromStdString(recorded.model);
        if (QFileInfo(model).isAbsolute() && !QFileInfo::exists(model))
            return showMessage(tr("The model of this run is not at %1 any more. Put it back there to fork the run.")
                                   .arg(QDir::toNativeSeparators(model)),
                               true);
        auto* dialog = new ForkDialog(run->key, run->row, recorded, workspace_->cursor(), this);
        connect(dialog, &QDialog::accepted, this, [this, dialog] { runFork(dialog->request()); });
        dialog->open();
    } catch (const Error& error) {
        showMessage(QString::fromStdString(oneLine(error)), true);
    }
}

void MainWindow::runFork(const ForkRequest& fork) {
    if (session_.active) return showMessage(tr("A session is running. Stop it or wait for its end."), true);
    SessionRequest request;
    request.fork = fork;
    request.options.recordModelPath = saved_.modelPath;
    session_.forked = fork.key;
    session_.active = true;
    showMessage(tr("The run is made again up to step %1…").arg(fork.step));
    controller_->start(request);
    updateActions();
}

/// Once the fork is there and shown, it is compared with the run that it goes on from.
void MainWindow::compareFork() {
    const OpenRun* run = workspace_->current();
    if (!session_.forked || !run || !run->live || !workspace_->find(*session_.forked)) return;
    const RunKey recorded = *session_.forked;
    session_.forked.reset();
    workspace_->setCompare(recorded);
    showView(QStringLiteral("compare"));
    showMessage(tr("The fork decodes; it is compared with the run that it goes on from."));
}

} // namespace kvscope::ui
