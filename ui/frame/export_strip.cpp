#include "ui/frame/export_strip.h"

#include "ui/frame/units.h"

#include <QEvent>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QTimer>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kPatienceMs = 300, kLeaveMs = 5000;
constexpr int kEdge = 12, kWidth = 460; // pixels
} // namespace

ExportStrip::ExportStrip(QWidget* parent) : QFrame(parent) {
    setObjectName(QStringLiteral("exportStrip"));
    setFrameShape(QFrame::StyledPanel);
    setAutoFillBackground(true);
    auto* row = new QHBoxLayout(this);
    text_ = new QLabel;
    text_->setTextFormat(Qt::PlainText); // a path may look like markup
    text_->setWordWrap(true);
    bar_ = new QProgressBar;
    bar_->setTextVisible(false);
    bar_->setMaximumHeight(8);
    bar_->setRange(0, 1000);
    bar_->setAccessibleName(tr("Numbers written"));
    button_ = new QPushButton;
    button_->setObjectName(QStringLiteral("stopExport"));
    row->addWidget(text_, 1);
    row->addWidget(bar_, 1);
    row->addWidget(button_);
    patience_ = new QTimer(this);
    leave_ = new QTimer(this);
    for (QTimer* timer : {patience_, leave_}) timer->setSingleShot(true);
    patience_->setInterval(kPatienceMs);
    leave_->setInterval(kLeaveMs);
    connect(patience_, &QTimer::timeout, this, [this] {
        place();
        show();
    });
    connect(leave_, &QTimer::timeout, this, &QWidget::hide);
    connect(button_, &QPushButton::clicked, this, [this] {
        if (export_.running())
            export_.cancel();
        else
            hide();
    });
    connect(&export_, &NumbersExport::progressed, this, &ExportStrip::told);
    connect(&export_, &NumbersExport::finished, this, &ExportStrip::ended);
    parent->installEventFilter(this);
    hide();
}

bool ExportStrip::begin(const NumberWriter& numbers, const QString& path) {
    leave_->stop();
    hide();
    if (!numbers) {
        ended(path, tr("This view has no numbers to export yet."), false);
        return false;
    }
    what_ = path.isEmpty() ? tr("Copying") : tr("Writing %1").arg(QFileInfo(path).fileName());
    bar_->setValue(0);
    say(what_, true);
    patience_->start();
    return true;
}

void ExportStrip::toFile(NumberWriter numbers, const QString& path) {
    if (begin(numbers, path)) export_.toFile(std::move(numbers), path);
}

void ExportStrip::toClipboard(NumberWriter numbers) {
    if (begin(numbers, {})) export_.toClipboard(std::move(numbers));
}

void ExportStrip::told(double share, qint64 bytes) {
    bar_->setValue(int(std::lround(1000 * std::clamp(share, 0.0, 1.0))));
    say(tr("%1: %2").arg(what_, formatValue(Unit::Bytes, double(bytes))), true);
}

void ExportStrip::ended(const QString& path, const QString& problem, bool cancelled) {
    if (!export_.running()) { // if another export runs by now, the strip shows that one
        patience_->stop();
        QString sentence = problem;
        if (sentence.isEmpty())
            sentence = cancelled        ? tr("Stopped; nothing was written.")
                       : path.isEmpty() ? tr("Copied; paste it into a table.")
                                        : tr("Saved %1").arg(path);
        say(sentence, false);
        place();
        show();
        if (problem.isEmpty()) leave_->start();
    }
    emit finished(path, problem, cancelled);
}

void ExportStrip::say(const QString& text, bool running) {
    text_->setText(text);
    bar_->setVisible(running);
    button_->setText(running ? tr("Stop") : tr("Close"));
    button_->setToolTip(running ? tr("Stop; what was written is removed") : QString());
}

void ExportStrip::place() {
    const QWidget* view = parentWidget();
    const int width = std::min(kWidth, view->width() - 2 * kEdge);
    const int height = std::max(sizeHint().height(), layout()->heightForWidth(width));
    setGeometry(view->width() - width - kEdge, view->height() - height - kEdge, width, height);
    raise();
}

bool ExportStrip::eventFilter(QObject* watched, QEvent* event) {
    if (event->type() == QEvent::Resize && isVisible()) place();
    return QFrame::eventFilter(watched, event);
}

} // namespace kvscope::ui
