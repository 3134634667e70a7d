#include "ui/window/session_progress.h"

#include "ui/frame/small_widgets.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QToolButton>

#include <cmath>

namespace kvscope::ui {

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
}

void SessionProgress::advance(double fraction, const QString& what) {
    bar_->setValue(int(std::lround(fraction * 1000)));
    text_->setText(what);
}

} // namespace kvscope::ui
