#include "ui/window/status_line.h"

#include "ui/frame/as_written.h"
#include "ui/frame/small_widgets.h"

#include <QLabel>
#include <QPainter>
#include <QStyle>
#include <QToolButton>

namespace kvscope::ui {

namespace {

/// One line, which ends in an ellipsis where there is no room for all of it; its tooltip has all.
class MessageLine final : public QLabel {
protected:
    void paintEvent(QPaintEvent* event) override {
        const QString line = QString(text()).replace(QLatin1Char('\n'), QLatin1Char(' '));
        const QString shown = fontMetrics().elidedText(line, Qt::ElideRight, contentsRect().width());
        if (shown == text()) return QLabel::paintEvent(event);
        QPainter painter(this);
        painter.setPen(palette().color(foregroundRole()));
        painter.drawText(contentsRect(), Qt::AlignLeft | Qt::AlignVCenter | Qt::TextSingleLine, shown);
    }
};

} // namespace

StatusLine::StatusLine(QWidget* parent)
    : QStatusBar(parent), message_(new MessageLine), busy_(new MutedLabel(tr("reading…"))), dismiss_(new QToolButton),
      broken_(makeButton("brokenRules", "danger")) {
    message_->setObjectName(QStringLiteral("statusMessage"));
    message_->setTextFormat(Qt::PlainText); // file names may look like markup
    message_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    message_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Preferred);
    dismiss_->setText(QStringLiteral("×"));
    dismiss_->setAutoRaise(true);
    dismiss_->setStyleSheet(QStringLiteral("padding: 0px 5px;")); // the button must not make the status bar higher
    dismiss_->setToolTip(tr("Hide this message"));
    dismiss_->setAccessibleName(tr("Hide this message"));
    dismiss_->hide();
    broken_->setAccessibleName(tr("Rows that break rules of the trace format"));
    busy_->setMinimumWidth(70);
    busy_->setVisible(false);
    setSizeGripEnabled(false);
    setContentsMargins(10, 0, 6, 0);
    addWidget(message_, 1);
    addPermanentWidget(dismiss_);
    addPermanentWidget(broken_);
    addPermanentWidget(busy_);
    connect(dismiss_, &QToolButton::clicked, this, [this] { say({}); });
    connect(broken_, &QToolButton::clicked, this, &StatusLine::brokenClicked);
}

QToolButton* StatusLine::makeButton(const char* objectName, const char* role) {
    auto* button = new QToolButton;
    button->setObjectName(QLatin1String(objectName));
    button->setAutoRaise(true);
    if (role != nullptr) button->setProperty("role", QLatin1String(role));
    button->setStyleSheet(QStringLiteral("padding: 0px 6px;"));
    button->hide();
    return button;
}

QToolButton* StatusLine::addButton(const char* objectName) {
    QToolButton* button = makeButton(objectName, nullptr);
    addPermanentWidget(button);
    return button;
}

void StatusLine::say(const QString& text, bool isError, About about) {
    about_ = about;
    message_->setText(text);
    explain(text);
    message_->setProperty("role", isError ? "danger" : "muted");
    message_->style()->unpolish(message_); // only this makes the style sheet look at the property again
    message_->style()->polish(message_);
    dismiss_->setVisible(!text.isEmpty());
}

void StatusLine::forget(About about) {
    if (about_ == about) say({});
}

void StatusLine::explain(const QString& text) { message_->setToolTip(asWritten(text)); }

void StatusLine::showBroken(const QString& text, const QString& details) {
    broken_->setVisible(!text.isEmpty());
    if (text.isEmpty()) return;
    broken_->setText(QStringLiteral("⚠ ") + text);
    broken_->setToolTip(asWritten(details));
    broken_->setAccessibleName(text);
}

void StatusLine::setBusy(bool busy) { busy_->setVisible(busy); }

} // namespace kvscope::ui
