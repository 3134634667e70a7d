#include "ui/views/headline.h"

#include "ui/frame/note_label.h"
#include "ui/look/theme.h"

#include <QApplication>
#include <QFontMetrics>
#include <QLabel>
#include <QPainter>
#include <QVBoxLayout>

namespace kvscope::ui {

namespace {
constexpr int kLinesInLowView = 2; // of the detail
} // namespace

QFont headlineFont(double size) {
    QFont font = QApplication::font();
    font.setPointSizeF(font.pointSizeF() * size);
    font.setBold(true);
    return font;
}

Paragraphs::Paragraphs(QPainter* painter, QRect area)
    : painter_(painter), area_(area), font_(painter ? painter->font() : QApplication::font()), bottom_(area.top()) {}

Paragraphs::~Paragraphs() {
    if (painter_) painter_->setFont(font_);
}

void Paragraphs::add(const QString& text, const QFont& font, const QColor& colour) {
    if (text.isEmpty()) return;
    constexpr int kFlags = Qt::AlignLeft | Qt::AlignTop | Qt::TextWordWrap, kDistance = 6;
    const QRect room(area_.left(), bottom_, area_.width(), 10'000);
    QRect used;
    if (painter_) {
        painter_->setFont(font);
        painter_->setPen(colour);
        painter_->drawText(room, kFlags, text, &used);
    } else {
        used = QFontMetrics(font).boundingRect(room, kFlags, text);
    }
    bottom_ += used.height() + kDistance;
}

Headline::Headline(QWidget* parent) : QWidget(parent), sentence_(new QLabel), detail_(new NoteLabel) {
    setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Maximum);
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 2);
    column->setSpacing(4);
    sentence_->setObjectName(QStringLiteral("headline"));
    detail_->setObjectName(QStringLiteral("headlineDetail"));
    for (QLabel* label : {sentence_, static_cast<QLabel*>(detail_)}) {
        label->setTextFormat(Qt::PlainText);
        label->setWordWrap(true);
        label->setTextInteractionFlags(Qt::TextSelectableByMouse);
        column->addWidget(label);
    }
    applyFont();
}

void Headline::setText(const QString& sentence, const QString& detail) {
    sentence_->setText(sentence);
    detail_->setText(detail);
}

void Headline::applyFont() {
    sentence_->setFont(headlineFont());
    detail_->setFont(QApplication::font());
}

void Headline::fit(const QWidget& view) { detail_->fit(view, kLinesInLowView); }

void Headline::addTo(Paragraphs& paragraphs) const {
    const Theme& theme = Theme::current();
    paragraphs.add(sentence_->text(), headlineFont(), theme.text);
    paragraphs.add(detail_->text(), theme.mutedText);
}

} // namespace kvscope::ui
