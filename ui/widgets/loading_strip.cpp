#include "ui/widgets/loading_strip.h"

#include "ui/frame/units.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QTimer>

namespace kvscope::ui {

namespace {
constexpr int kPatienceMs = 300;
}

LoadingStrip::LoadingStrip(QWidget* parent, const QString& unit)
    : QWidget(parent), unit_(unit.isEmpty() ? tr("steps") : unit) {
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(0, 0, 0, 0);
    text_ = new QLabel;
    text_->setTextFormat(Qt::PlainText);
    text_->setProperty("role", QStringLiteral("muted"));
    bar_ = new QProgressBar;
    bar_->setTextVisible(false);
    bar_->setMaximumHeight(8);
    bar_->setAccessibleName(tr("Read: %1").arg(unit_));
    button_ = new QPushButton;
    button_->setObjectName(QStringLiteral("stopReading"));
    row->addWidget(text_);
    row->addWidget(bar_, 1);
    row->addWidget(button_);
    patience_ = new QTimer(this);
    patience_->setSingleShot(true);
    patience_->setInterval(kPatienceMs);
    connect(patience_, &QTimer::timeout, this, [this] { setVisible(state_ != State::Idle); });
    connect(button_, &QPushButton::clicked, this, [this] {
        if (state_ == State::Paused)
            emit resumed();
        else
            emit stopped();
    });
    hide();
}

void LoadingStrip::show(State state, int loaded, int total) {
    const bool began = state == State::Loading && state_ == State::Idle;
    state_ = state;
    bar_->setRange(0, std::max(total, 1));
    bar_->setValue(loaded);
    const QString count = tr("%1 of %2 %3").arg(formatCount(loaded), formatCount(total), unit_);
    text_->setText(state == State::Paused ? tr("Stopped at %1").arg(count) : tr("Reading %1").arg(count));
    button_->setText(state == State::Paused ? tr("Read on") : tr("Stop"));
    button_->setToolTip(state == State::Paused ? tr("Read what is missing") : tr("Stop reading; what was read stays"));
    if (state == State::Idle) {
        patience_->stop();
        hide();
    } else if (state == State::Paused) {
        setVisible(true);
    } else if (began) {
        patience_->start();
    }
}

} // namespace kvscope::ui
