#include "ui/frame/note_label.h"

#include "ui/frame/as_written.h"

#include <QFontMetrics>
#include <QHelpEvent>
#include <QPainter>
#include <QTextLayout>
#include <QToolTip>

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr int kLow = 620; // px; in a lower view the note is cut
} // namespace

NoteLabel::NoteLabel(QWidget* parent) : QLabel(parent) {
    setProperty("role", QStringLiteral("muted"));
    setTextFormat(Qt::PlainText); // the note may contain text from a file
    setWordWrap(true);
    setTextInteractionFlags(Qt::TextSelectableByMouse);
    QFont small = font();
    small.setPointSizeF(std::max(7.5, small.pointSizeF() - 1));
    setFont(small);
}

void NoteLabel::fit(const QWidget& owner, int lines) {
    int height = owner.height();
    for (const QWidget* around = owner.parentWidget(); around && !owner.isWindow(); around = around->parentWidget()) {
        height = std::min(height, around->height());
        if (around->isWindow()) break;
    }
    const int most = height < kLow ? lines : 0;
    if (most == mostLines_) return;
    mostLines_ = most;
    updateGeometry();
    update();
}

int NoteLabel::heightOf(int lines) const {
    const QFontMetrics metrics = fontMetrics();
    return metrics.height() + (lines - 1) * metrics.lineSpacing();
}

bool NoteLabel::isCut() const {
    if (mostLines_ == 0) return false;
    // Measured here: QLabel::heightForWidth lays its document out anew, which asks for another paint, and painting asks
    // whether the note is cut.
    const int whole =
        fontMetrics().boundingRect(QRect(0, 0, width(), QWIDGETSIZE_MAX), Qt::TextWordWrap, text()).height();
    return whole > heightOf(mostLines_) + fontMetrics().lineSpacing() / 2;
}

int NoteLabel::heightForWidth(int width) const {
    const int whole = QLabel::heightForWidth(width);
    return mostLines_ > 0 ? std::min(whole, heightOf(mostLines_)) : whole;
}

QSize NoteLabel::sizeHint() const {
    const QSize whole = QLabel::sizeHint();
    return mostLines_ > 0 ? whole.boundedTo({whole.width(), heightOf(mostLines_)}) : whole;
}

QSize NoteLabel::minimumSizeHint() const {
    const QSize whole = QLabel::minimumSizeHint();
    return mostLines_ > 0 ? whole.boundedTo({whole.width(), heightOf(mostLines_)}) : whole;
}

bool NoteLabel::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip && isCut()) {
        QToolTip::showText(static_cast<QHelpEvent*>(event)->globalPos(), asWritten(text()), this);
        return true;
    }
    return QLabel::event(event);
}

void NoteLabel::paintEvent(QPaintEvent* event) {
    if (!isCut()) return QLabel::paintEvent(event);
    QPainter painter(this);
    painter.setPen(palette().color(foregroundRole()));
    QString lines = text();
    lines.replace(QLatin1Char('\n'), QChar::LineSeparator);
    QTextLayout layout(lines, font());
    QTextOption wrap;
    wrap.setWrapMode(QTextOption::WordWrap);
    layout.setTextOption(wrap);
    layout.beginLayout();
    for (int line = 0; line < mostLines_; ++line) {
        QTextLine next = layout.createLine();
        if (!next.isValid()) break;
        next.setLineWidth(width());
        const int top = line * fontMetrics().lineSpacing();
        QString rest = lines.mid(next.textStart(), line + 1 < mostLines_ ? next.textLength() : -1);
        rest.replace(QChar::LineSeparator, QLatin1Char(' '));
        const QString shown = line + 1 < mostLines_ ? rest : fontMetrics().elidedText(rest, Qt::ElideRight, width());
        painter.drawText(0, top + fontMetrics().ascent(), shown);
    }
    layout.endLayout();
}

} // namespace kvscope::ui
