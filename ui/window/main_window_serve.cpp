// The server that the window starts: the dialog, the trace that is opened while it grows, and the end.
#include "ui/frame/as_written.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/serve_dialog.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/trace_facts.h"
#include "ui/window/main_window.h"
#include "ui/window/status_line.h"

#include <QAction>
#include <QMessageBox>
#include <QPushButton>
#include <QTimer>
#include <QToolButton>

namespace kvscope::ui {
namespace {

constexpr int kLookMs = 200; // between two looks whether the run of a server is in its trace
constexpr int kMostLooks = 50;

} // namespace

/// The server of the window. It is made when it is first needed.
ServerProcess& MainWindow::server() {
    if (server_) return *server_;
    server_ = new ServerProcess(this);
    if (!serverProgram_.isEmpty()) server_->setProgram(serverProgram_);
    serving_ = status_->addButton("servingAt");
    connect(serving_, &QToolButton::clicked, this, &MainWindow::showServeDialog);
    connect(server_, &ServerProcess::changed, this, &MainWindow::followServer);
    connect(server_, &ServerProcess::ready, this, [this] { openServed(server_->trace(), kMostLooks); });
    return *server_;
}

void MainWindow::setServerProgram(const QString& program) {
    serverProgram_ = program;
    if (server_) server_->setProgram(program);
}

void MainWindow::showServeDialog() {
    auto* dialog = findChild<ServeDialog*>();
    if (dialog == nullptr) {
        dialog = new ServeDialog(server(), this);
        dialog->setValues(saved_.server);
    }
    dialog->setRecordModelPath(saved_.modelPath);
    dialog->setModel(form_->modelName(), form_->hasModel() ? controller_->model() : nullptr);
    dialog->show();
    dialog->raise();
    dialog->activateWindow();
}

/// Says in the status bar that a server runs, also while the dialog is closed, and how it ended.
void MainWindow::followServer() {
    using State = ServerProcess::State;
    const bool running = server_->isRunning();
    const QString place = server_->address().isEmpty() ? tr("a server starts") : server_->address();
    serving_->setVisible(running);
    serving_->setText(server_->state() == State::Stopping ? tr("stopping %1").arg(place)
                                                          : tr("serving: %1").arg(place));
    serving_->setToolTip(asWritten(tr("%1 Click to see the server.").arg(server_->sentence())));
    serving_->setAccessibleName(serving_->text());
    if (server_->state() == State::Failed || server_->state() == State::Ended)
        showMessage(server_->sentence(), server_->state() == State::Failed);
}

/// Opens the trace of a server as soon as its run is in it, and shows the requests.
void MainWindow::openServed(const QString& trace, int looks) {
    if (ended_) return;
    readTraceFacts(
        this, [trace] { return QStringList{trace}; },
        [this, trace, looks](const std::vector<TraceFacts>& facts) {
            if (facts.empty() || facts.front().runs == 0) {
                if (looks > 0)
                    QTimer::singleShot(kLookMs, this, [this, trace, looks] { openServed(trace, looks - 1); });
                return;
            }
            showView(QStringLiteral("serving"));
            openFiles({trace});
        });
}

/// @return whether the window may close: no server runs, or the user wants it to stop then
bool MainWindow::askToStopServer() {
    if (!server_ || !server_->isRunning()) return true;
    const QString place =
        server_->address().isEmpty() ? tr("It starts") : tr("It answers at %1").arg(server_->address());
    QMessageBox question(QMessageBox::Question, tr("A server is running"),
                         tr("Stop the server and close the window? %1. Requests that run are cancelled, and what was "
                            "recorded stays in its trace.")
                             .arg(place),
                         QMessageBox::NoButton, this);
    const QAbstractButton* close = question.addButton(tr("Stop and Close"), QMessageBox::AcceptRole);
    QPushButton* stay = question.addButton(tr("Keep Serving"), QMessageBox::RejectRole);
    question.setDefaultButton(stay); // the Return key then keeps the server running
    question.exec();
    return question.clickedButton() == close;
}

} // namespace kvscope::ui
