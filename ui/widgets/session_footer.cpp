#include "ui/widgets/session_footer.h"

#include "ui/frame/as_written.h"
#include "ui/frame/small_widgets.h"
#include "ui/widgets/form_helpers.h"

#include <QHBoxLayout>
#include <QPushButton>
#include <QVBoxLayout>

namespace kvscope::ui {

SessionFooter::SessionFooter(QWidget* parent) : QFrame(parent) {
    setObjectName(QStringLiteral("formFooter"));
    auto* body = new QVBoxLayout(this);
    body->setContentsMargins(12, 6, 12, 10);
    body->setSpacing(6);
    estimate_ = addMuted(body, "estimate");
    estimate_->setToolTip(tr("Blocks of keys and values in float32, for the whole batch at its final length."));
    message_ = new InlineMessage;
    message_->setObjectName(QStringLiteral("runMessage"));
    body->addWidget(message_);
    reason_ = addMuted(body, "runReason");
    run_ = new QPushButton(tr("Run"));
    run_->setObjectName(QStringLiteral("runButton"));
    run_->setProperty("primary", true);
    queue_ = named(new QPushButton(tr("Queue")), "queueButton",
                   tr("Run this session when those before it have ended; at once if none runs (F7)"));
    queue_->setAccessibleName(tr("Add to Queue"));
    sweep_ = named(new QPushButton(tr("Sweep…")), "sweepButton",
                   tr("Queue a run for every combination of values of some settings (Ctrl+F7)"));
    auto* row = new QHBoxLayout;
    row->setSpacing(6);
    row->addWidget(run_, 1);
    for (QPushButton* button : {run_, queue_, sweep_}) button->setMinimumHeight(32);
    row->addWidget(queue_);
    row->addWidget(sweep_);
    body->addLayout(row);
    connect(run_, &QPushButton::clicked, this, &SessionFooter::run);
    connect(queue_, &QPushButton::clicked, this, &SessionFooter::addToQueue);
    connect(sweep_, &QPushButton::clicked, this, &SessionFooter::sweep);
}

void SessionFooter::setEstimate(const QString& text) { estimate_->setText(text); }

void SessionFooter::showError(const QString& sentence) { message_->show(InlineMessage::Kind::Error, sentence); }

void SessionFooter::showNote(const QString& sentence) { message_->show(InlineMessage::Kind::Note, sentence); }

void SessionFooter::clearMessage() { message_->clear(); }

void SessionFooter::setProblems(const QString& reason, const QString& problem, const QString& requested) {
    reason_->setText(reason);
    reason_->setVisible(!reason.isEmpty());
    run_->setEnabled(problem.isEmpty());
    run_->setToolTip(problem.isEmpty() ? tr("Run this session (F5)") : asWritten(problem));
    for (QPushButton* button : {queue_, sweep_}) {
        button->setEnabled(requested.isEmpty());
        button->setToolTip(requested.isEmpty() ? button->whatsThis() : asWritten(requested));
    }
}

void SessionFooter::focusRun() { run_->setFocus(Qt::OtherFocusReason); }

} // namespace kvscope::ui
