// The queue of runs and the sweep: what is added, where it is seen, and what closing the window asks.
#include "ui/frame/as_written.h"
#include "ui/session/request_json.h"
#include "ui/session/run_queue.h"
#include "ui/widgets/queue_model.h"
#include "ui/widgets/queue_panel.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/sweep_dialog.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"
#include "ui/window/status_line.h"

#include <QDir>
#include <QDockWidget>
#include <QMessageBox>
#include <QPushButton>
#include <QToolButton>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kQueueHeight = 220;       // pixels, for some five rows
constexpr std::size_t kMostMarked = 26; // runs that are compared at a time: as many as there are letters

} // namespace

void MainWindow::connectQueue() {
    queued_ = status_->addButton("queueProgress");
    queued_->setAccessibleName(tr("Queue"));
    connect(queued_, &QToolButton::clicked, this, &MainWindow::showQueue);
    connect(form_, &SessionForm::queueRequested, this, &MainWindow::addToQueue);
    connect(form_, &SessionForm::sweepRequested, this, &MainWindow::showSweepDialog);
    connect(queue_, &RunQueue::starting, this, [this] {
        session_.active = session_.queued = true;
        showMessage({});
        updateActions();
    });
    connect(queue_, &RunQueue::changed, this, &MainWindow::updateQueue);
    connect(queue_, &RunQueue::sweepEnded, this, [this](const std::vector<RunKey>& finished) {
        if (finished.empty()) return showMessage(tr("The sweep ended; none of its runs was finished."), true);
        compareRuns(finished);
        showMessage(finished.size() == 1
                        ? tr("The sweep ended: one run is finished.")
                        : tr("The sweep ended: its %1 finished runs are marked for Compare.").arg(finished.size()));
    });
    connect(queuePanel_, &QueuePanel::compareRequested, this, [this](const std::vector<RunKey>& runs) {
        compareRuns(runs);
        showView(QStringLiteral("compare"));
    });
}

void MainWindow::addToQueue(SessionRequest request) {
    request.options.recordModelPath = saved_.modelPath;
    const std::shared_ptr<const Model> model = form_->model();
    if (!model) return;
    queue_->add(queuedName(request, *model), request);
    showQueue();
}

void MainWindow::showSweepDialog() {
    SweepBase base{form_->request(), form_->model(), form_->promptTokens()};
    if (!base.model) return;
    base.form.options.recordModelPath = saved_.modelPath;
    auto* dialog = new SweepDialog(std::move(base), this);
    connect(dialog, &QDialog::accepted, this, [this, dialog] {
        queue_->addSweep(dialog->runs(), dialog->trace());
        showQueue();
    });
    dialog->open();
}

void MainWindow::showQueue() {
    QDockWidget* const dock = panels_->dock(Panel::Queue);
    const bool appears = dock->isHidden();
    panels_->show(Panel::Queue);
    if (appears && dock->height() < kQueueHeight) resizeDocks({dock}, {kQueueHeight}, Qt::Vertical);
}

/// Says in the status bar how far the queue is, also while the panel is hidden.
void MainWindow::updateQueue() {
    const QueuedRun* running = queue_->running();
    const bool works = running != nullptr || queue_->waiting() > 0;
    queued_->setVisible(works);
    queued_->setText(tr("Queue: %1").arg(queueText(*queue_)));
    queued_->setAccessibleName(queued_->text());
    queued_->setToolTip(asWritten(running != nullptr ? tr("%1 runs. Click to see the queue.").arg(running->name)
                                                     : tr("Click to see the queue.")));
    writeJournal();
}

/// Shows the first of the runs and marks the others for Compare, as many as have letters.
void MainWindow::compareRuns(const std::vector<RunKey>& runs) {
    std::vector<RunKey> open;
    for (const RunKey& run : runs) {
        const RunKey key{QDir::cleanPath(run.path), run.runId};
        if (workspace_->find(key) != nullptr && open.size() < kMostMarked) open.push_back(key);
    }
    if (open.empty()) return;
    workspace_->setCompare(std::nullopt);
    workspace_->setCurrent(open.front());
    for (std::size_t i = 1; i < open.size(); ++i) workspace_->setCompared(open[i], true);
}

/// @return whether the window may close: no session runs and none waits, or the person gives them up
bool MainWindow::askToClose() {
    const int waiting = queue_->waiting();
    const bool runs = session_.active && controller_->state() != SessionController::State::Idle;
    if (!runs && waiting == 0) return true;
    const QString wait = waiting == 1 ? tr("One run waits in the queue and will not be made.")
                                      : tr("%1 runs wait in the queue and will not be made.").arg(waiting);
    QString text = runs ? tr("Stop the session and close the window? What was recorded so far stays in its trace.")
                        : tr("Close the window?");
    if (waiting > 0) text += QLatin1Char(' ') + wait;
    QMessageBox question(QMessageBox::Question, runs ? tr("A session is running") : tr("Runs are waiting"), text,
                         QMessageBox::NoButton, this);
    const QAbstractButton* close =
        question.addButton(runs ? tr("Stop and Close") : tr("Close"), QMessageBox::AcceptRole);
    QPushButton* stay = question.addButton(runs ? tr("Keep Running") : tr("Keep Open"), QMessageBox::RejectRole);
    question.setDefaultButton(stay); // the Return key then keeps the session running
    question.exec();
    if (question.clickedButton() != close) return false;
    queue_->cancelAll();
    controller_->stop();
    return true;
}

QByteArray MainWindow::waitingRuns() const {
    std::vector<NamedRequest> waiting;
    for (const QueuedRun& run : queue_->runs())
        if (run.state == QueuedRun::State::Waiting) waiting.emplace_back(run.name, run.request);
    return waiting.empty() ? QByteArray() : requestsJson(waiting);
}

void MainWindow::queueAgain(const QByteArray& waiting) {
    const std::vector<NamedRequest> runs = requestsOf(waiting);
    if (runs.empty()) return;
    queue_->addSweep(runs);
    showQueue();
}

} // namespace kvscope::ui
