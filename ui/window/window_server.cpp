#include "ui/window/window_server.h"

#include "ui/frame/as_written.h"
#include "ui/widgets/trace_facts.h"
#include "ui/window/status_line.h"

#include <QMessageBox>
#include <QPushButton>
#include <QTimer>
#include <QToolButton>

namespace kvscope::ui {
namespace {

constexpr int kLookMs = 200; // between two looks whether the run of a server is in its trace
constexpr int kMostLooks = 50;

} // namespace

WindowServer::WindowServer(StatusLine& status, QWidget* window) : QObject(window), status_(status), window_(window) {}

ServerProcess& WindowServer::process() {
    if (process_ != nullptr) return *process_;
    process_ = new ServerProcess(this);
    if (!program_.isEmpty()) process_->setProgram(program_);
    button_ = status_.addButton("servingAt");
    connect(button_, &QToolButton::clicked, this, &WindowServer::clicked);
    connect(process_, &ServerProcess::changed, this, &WindowServer::follow);
    connect(process_, &ServerProcess::ready, this, [this] {
        looks_ = true;
        lookInto(process_->trace(), kMostLooks);
    });
    return *process_;
}

void WindowServer::setProgram(const QString& program) {
    program_ = program;
    if (process_ != nullptr) process_->setProgram(program);
}

/// Says in the status line that a server runs, also while the dialog is closed, and how it ended.
void WindowServer::follow() {
    using State = ServerProcess::State;
    const State state = process_->state();
    const QString place = process_->address().isEmpty() ? tr("a server starts") : process_->address();
    button_->setVisible(process_->isRunning());
    button_->setText(state == State::Stopping ? tr("stopping %1").arg(place) : tr("serving: %1").arg(place));
    button_->setToolTip(asWritten(tr("%1 Click to see the server.").arg(process_->sentence())));
    button_->setAccessibleName(button_->text());
    if (state == State::Failed || state == State::Ended) status_.say(process_->sentence(), state == State::Failed);
}

/// Looks until the run of the server is in the trace, or `looks` times more.
void WindowServer::lookInto(const QString& trace, int looks) {
    readTraceFacts(
        this, [trace] { return QStringList{trace}; },
        [this, trace, looks](const std::vector<TraceFacts>& facts) {
            if (!looks_) return;
            if (!facts.empty() && facts.front().runs > 0) return emit recording(trace);
            if (looks > 0) QTimer::singleShot(kLookMs, this, [this, trace, looks] { lookInto(trace, looks - 1); });
        });
}

void WindowServer::stopAndWait() {
    looks_ = false;
    if (process_ != nullptr) process_->stopAndWait();
}

bool WindowServer::askToStop() {
    if (process_ == nullptr || !process_->isRunning()) return true;
    const QString place =
        process_->address().isEmpty() ? tr("It starts") : tr("It answers at %1").arg(process_->address());
    QMessageBox question(QMessageBox::Question, tr("A server is running"),
                         tr("Stop the server and close the window? %1. Requests that run are cancelled, and what was "
                            "recorded stays in its trace.")
                             .arg(place),
                         QMessageBox::NoButton, window_);
    const QAbstractButton* close = question.addButton(tr("Stop and Close"), QMessageBox::AcceptRole);
    QPushButton* stay = question.addButton(tr("Keep Serving"), QMessageBox::RejectRole);
    question.setDefaultButton(stay); // the Return key then keeps the server running
    question.exec();
    return question.clickedButton() == close;
}

} // namespace kvscope::ui
