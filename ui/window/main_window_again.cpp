// Running a recorded run again, and the list of the rows that break rules of the trace format.
#include "ui/frame/as_written.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/run_checks.h"
#include "ui/frame/run_names.h"
#include "ui/session/run_again.h"
#include "ui/widgets/check_dialog.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/session_form.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"
#include "ui/window/status_line.h"

#include "base/error.h"
#include "core/model/model.h"

#include <QAction>
#include <QDir>
#include <QFileInfo>

#include <utility>

namespace kvscope::ui {

namespace {

/// Changes what a recorded session was asked for, and says so.
void applyChange(SessionToRepeat& recorded, const ProposedChange& change) {
    SessionOptions& options = recorded.request.options;
    if (change.deviceSlots > 0) {
        options.deviceKvBlocks = change.deviceSlots;
        recorded.remarks
            << MainWindow::tr("Changed: %1 block slots for every layer and KV head.").arg(change.deviceSlots);
    }
    if (!change.cachePolicy.isEmpty()) {
        options.cachePolicy = change.cachePolicy.toStdString();
        recorded.remarks << MainWindow::tr("Changed: the cache policy %1.").arg(change.cachePolicy);
    }
    if (change.forecast) {
        const std::string key = change.forecast->first.toStdString();
        std::erase_if(options.settings, [&](const auto& setting) { return setting.first == key; });
        options.settings.emplace_back(key, change.forecast->second.toStdString());
        recorded.remarks << MainWindow::tr("Changed: blocks are chosen a layer early, by the Forecast.");
    }
    if (change.resident) {
        options.offload = false;
        options.deviceKvBlocks.reset();
        recorded.remarks << MainWindow::tr("Changed: every block stays on the device.");
    }
}

} // namespace

QString MainWindow::whyNoRun() const {
    const OpenRun* run = workspace_->current();
    if (!run) return tr("No run is open.");
    return session_.active ? tr("A session is running. Stop it or wait for its end.") : whyNotAgain(*run);
}

void MainWindow::runWith(const ProposedChange& change) {
    const OpenRun* run = workspace_->current();
    if (!run) return;
    repeat_.change = change;
    repeat_.runs = true;
    runAgain(run->key);
}

/// First the model, then the rest of the form: a model with another fingerprint must leave the form as it was.
void MainWindow::runAgain(const RunKey& key) {
    const OpenRun* run = workspace_->find(key);
    if (!run) return;
    repeat_.recorded.reset();
    QString refusal = session_.active ? tr("A session is running. Stop it or wait for its end.") : whyNotAgain(*run);
    if (refusal.isEmpty()) {
        auto recorded = std::make_unique<SessionToRepeat>(sessionToRepeat(run->key, run->row));
        const QString model = recorded->request.model;
        const bool isPath = QFileInfo(model).isAbsolute();
        if (isPath && !QFileInfo::exists(model))
            refusal = tr("The model of this run is not at %1 any more. Put it back there, or choose model, prompt and "
                         "settings in the session form.")
                          .arg(QDir::toNativeSeparators(model));
        else
            repeat_.recorded = std::move(recorded);
    }
    if (repeat_.recorded && repeat_.change) applyChange(*repeat_.recorded, *repeat_.change);
    repeat_.change.reset();
    if (!repeat_.recorded) {
        repeat_.runs = false;
        form_->setRunProblem(refusal);
        return showMessage(refusal, true);
    }
    panels_->show(Panel::Session);
    if (form_->hasModel() && form_->modelName() == repeat_.recorded->request.model) return fillFormAgain();
    showMessage(tr("Loading the model of the recorded run…"));
    form_->chooseModel(repeat_.recorded->request.model); // goes on when it is there
}

void MainWindow::fillFormAgain() {
    const std::unique_ptr<SessionToRepeat> recorded = std::move(repeat_.recorded);
    QString problem;
    try {
        requireRecordedModel(*recorded, *controller_->model());
        problem = form_->fill(*recorded);
    } catch (const Error& error) {
        problem = QString::fromStdString(oneLine(error));
    }
    const bool runs = std::exchange(repeat_.runs, false);
    if (!problem.isEmpty()) {
        form_->setRunProblem(problem);
        return showMessage(problem, true);
    }
    if (runs) {
        const bool ready = form_->problem().isEmpty();
        runWhenReady();
        if (ready) return;
    }
    showMessage(tr("The session form holds what run %1 of %2 was recorded with.")
                    .arg(recorded->key.runId)
                    .arg(QFileInfo(recorded->key.path).fileName()));
}

/// Runs what the session form holds, as soon as the tokens of its prompt are counted.
void MainWindow::runWhenReady() {
    if (form_->problem().isEmpty()) return form_->run();
    auto* waits = new QObject(this); // any other problem is the person's
    connect(form_, &SessionForm::problemChanged, waits, [this, waits] {
        waits->deleteLater();
        if (form_->problem().isEmpty()) form_->run();
    });
}

void MainWindow::runAgainWhenOpen(const QString& path) {
    auto* waits = new QObject(this);
    const QString file = QFileInfo(path).absoluteFilePath();
    connect(workspace_.get(), &Workspace::currentChanged, waits, [this, waits, file] {
        if (!workspace_->current() || workspace_->current()->key.path != file) return; // a file of the last time
        waits->deleteLater();
        repeat_.runs = true;
        runAgain(workspace_->current()->key);
    });
    connect(workspace_.get(), &Workspace::openFailed, waits, [waits, file](const QString& failed) {
        if (failed == file) waits->deleteLater();
    });
    openFiles({path});
}

void MainWindow::updateAgain() {
    const OpenRun* run = workspace_->current();
    const QString refusal = !run              ? tr("No run is open.")
                            : session_.active ? tr("A session is running. Stop it or wait for its end.")
                                              : whyNotAgain(*run);
    QAction* again = action("again");
    again->setEnabled(refusal.isEmpty());
    again->setToolTip(refusal.isEmpty() ? tr("Fill the session form with what the shown run was recorded with "
                                             "(%1)")
                                              .arg(again->shortcut().toString(QKeySequence::NativeText))
                                        : asWritten(refusal));
    const QString noFork = whyNoFork();
    QAction* fork = action("fork");
    fork->setEnabled(noFork.isEmpty());
    fork->setToolTip(noFork.isEmpty() ? tr("Go on from the cursor's step of the shown run with other settings (%1)")
                                            .arg(fork->shortcut().toString(QKeySequence::NativeText))
                                      : asWritten(noFork));
    const QString broken = run ? brokenText(*workspace_, run->key) : QString();
    status_->showBroken(broken, broken.isEmpty() ? QString() : violationText(*workspace_, run->key));
}

void MainWindow::showViolations(const RunKey& key) {
    const OpenRun* run = workspace_->find(key);
    if (!run || RunChecks::of(*workspace_).violations(key) == 0) return;
    auto* dialog = new CheckDialog(*workspace_, key, runName(*run, workspace_->runs()), this);
    dialog->show();
}

} // namespace kvscope::ui
