#include "ui/widgets/prompt_progress.h"

#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"

#include <QEvent>
#include <QPainter>
#include <QProgressBar>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kCardWidth = 420, kCardMargin = 18;
constexpr int kBelowMiddle = 120;    // px, under the words and buttons in the middle of an empty view
constexpr qint64 kTellsFromMs = 400; // earlier, a few pieces decide about the estimate
} // namespace

PromptProgress::PromptProgress(QWidget* parent)
    : QWidget(parent), title_(new QLabel), bar_(new QProgressBar), detail_(new MutedLabel) {
    setObjectName(QStringLiteral("promptProgress"));
    setAttribute(Qt::WA_TransparentForMouseEvents);
    setAccessibleName(tr("Reading the prompt"));
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(kCardMargin, kCardMargin, kCardMargin, kCardMargin);
    column->setSpacing(8);
    title_->setObjectName(QStringLiteral("promptProgressTitle"));
    title_->setTextFormat(Qt::PlainText);
    QFont font = title_->font();
    font.setBold(true);
    title_->setFont(font);
    bar_->setRange(0, 1000);
    bar_->setTextVisible(false);
    bar_->setFixedHeight(8);
    detail_->setObjectName(QStringLiteral("promptProgressDetail"));
    detail_->setWordWrap(true);
    for (QWidget* part : {static_cast<QWidget*>(title_), static_cast<QWidget*>(bar_), static_cast<QWidget*>(detail_)})
        column->addWidget(part);
    parent->installEventFilter(this);
    hide();
}

QString PromptProgress::textOf(double fraction, int layers, int sequences) {
    const int percent = std::clamp(int(std::floor(fraction * 100)), 0, 100);
    if (layers <= 0 || fraction >= 1) return tr("Reading the prompt: %1 %").arg(percent);
    // Prompts are read one after the other, each layer by layer.
    const int all = layers * std::max(sequences, 1), at = std::clamp(int(fraction * all), 0, all - 1);
    const QString layer = tr("layer %1 of %2").arg(at % layers + 1).arg(layers);
    if (sequences > 1)
        return tr("Reading prompt %1 of %2: %3, %4 %").arg(at / layers + 1).arg(sequences).arg(layer).arg(percent);
    return tr("Reading the prompt: %1, %2 %").arg(layer).arg(percent);
}

QString PromptProgress::leftOf(double fraction, qint64 elapsedMs) {
    if (fraction <= 0 || elapsedMs < kTellsFromMs) return {};
    const double left = double(elapsedMs) / fraction * (1 - fraction) / 1000;
    if (left < 1) return tr("less than a second left");
    return left < 90 ? tr("about %1 s left").arg(std::lround(left))
                     : tr("about %1 min left").arg(std::lround(left / 60));
}

void PromptProgress::showReading(double fraction, int layers, int sequences) {
    if (!since_.isValid()) since_.start(), first_ = fraction;
    title_->setText(textOf(fraction, layers, sequences));
    bar_->setValue(int(std::lround(std::clamp(fraction, 0.0, 1.0) * 1000)));
    const double read = fraction - first_, rest = 1 - first_;
    const QString left = leftOf(rest > 0 ? read / rest : 0, since_.elapsed());
    detail_->setText((left.isEmpty() ? QString() : left + QStringLiteral(". ")) +
                     tr("The views fill with the first token; Pause takes effect before it."));
    place();
    show();
    raise();
}

void PromptProgress::end() {
    since_.invalidate();
    hide();
}

void PromptProgress::place() {
    const QSize room = parentWidget()->size();
    const int width = std::min(kCardWidth, room.width() - 16);
    resize(width, layout()->hasHeightForWidth() ? layout()->totalHeightForWidth(width) : sizeHint().height());
    move((room.width() - width) / 2, std::min(room.height() / 2 + kBelowMiddle, room.height() - height() - 12));
}

bool PromptProgress::eventFilter(QObject* watched, QEvent* event) {
    if (event->type() == QEvent::Resize && isVisible()) place();
    return QWidget::eventFilter(watched, event);
}

void PromptProgress::paintEvent(QPaintEvent*) {
    const Theme& theme = Theme::current();
    QPainter painter(this);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.setPen(QPen(theme.border, 1));
    painter.setBrush(theme.raised);
    painter.drawRoundedRect(QRectF(rect()).adjusted(0.5, 0.5, -0.5, -0.5), 8, 8);
}

} // namespace kvscope::ui
