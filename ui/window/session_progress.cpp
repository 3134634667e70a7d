#include "ui/window/session_progress.h"

#include "ui/frame/small_widgets.h"

#include <QAction>
#include <QEvent>
#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QToolButton>

#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kRoomForBoth = 1280; // px of window, from which numbers and progress stand beside the buttons
} // namespace

SessionProgress::SessionProgress(QWidget* parent)
    : QWidget(parent), row_(new QWidget), text_(new MutedLabel), bar_(new QProgressBar) {
    bar_->setObjectName(QStringLiteral("progress"));
    bar_->setRange(0, 1000);
    bar_->setTextVisible(false);
    bar_->setFixedSize(180, 6);
    auto* cancel = new QToolButton;
    cancel->setObjectName(QStringLiteral("cancel"));
    cancel->setText(tr("Cancel"));
    connect(cancel, &QToolButton::clicked, this, &SessionProgress::cancelled);
    auto* row = new QHBoxLayout(row_);
    row->setContentsMargins(4, 0, 4, 0);
    row->addWidget(text_);
    row->addWidget(bar_);
    row->addWidget(cancel);
    auto* layout = new QHBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->addWidget(row_);
    row_->hide();
}

void SessionProgress::setWorking(bool working) {
    if (working && row_->isHidden()) bar_->setValue(0);
    row_->setVisible(working);
    share();
}

void SessionProgress::takeRoomOf(QAction* other) {
    other_ = other;
    window()->installEventFilter(this);
    share();
}

void SessionProgress::share() {
    if (other_ != nullptr) other_->setVisible(row_->isHidden() || window()->width() >= kRoomForBoth);
}

bool SessionProgress::eventFilter(QObject* watched, QEvent* event) {
    if (event->type() == QEvent::Resize && watched == window()) share();
    return QWidget::eventFilter(watched, event);
}

void SessionProgress::advance(double fraction, const QString& what) {
    bar_->setValue(int(std::lround(fraction * 1000)));
    text_->setText(what);
}

} // namespace kvscope::ui
