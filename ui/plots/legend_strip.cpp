#include "ui/plots/legend_strip.h"

#include "ui/look/theme.h"

#include <QApplication>

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr int kBox = 12, kGap = 6, kBetween = 18, kLine = 20;
constexpr int kTight = 10;      // px between swatches whose names are cut
constexpr int kLinesShare = 20; // percent of a plot's height that all lines may take
constexpr int kFewestLines = 2; // that a plot has room for, however low it is
constexpr int kLeastName = 24;  // px; names are not cut shorter
constexpr int kBeside = 48;     // px of a plot's width that the legend leaves free
} // namespace

LegendStrip::LegendStrip(QCustomPlot* plot) : QCPLayoutElement(plot) {
    setLayer(QStringLiteral("axes"));
    setMargins(QMargins(0, 0, 0, 0));
    setMinimumMargins(QMargins(0, 0, 0, 0));
    setAutoMargins(QCP::msNone);
    setSizeConstraintRect(scrOuterRect);
    applyTheme(Theme::current());
}

void LegendStrip::setSwatches(QVector<Swatch> swatches) { swatches_ = std::move(swatches); }

void LegendStrip::applyTheme(const Theme& theme) {
    text_ = theme.text;
    border_ = theme.border;
    font_ = QApplication::font();
}

int LegendStrip::Layout::lines() const { return places.isEmpty() ? 0 : (places.last().bottom() + 1) / kLine; }

/// longest: px that a name may take; 0: as much as it needs
LegendStrip::Layout LegendStrip::arrange(int width, int longest) const {
    const QFontMetrics metrics(font_);
    Layout layout;
    layout.longest = longest;
    int x = 0, y = 0;
    for (const Swatch& swatch : swatches_) {
        const int name = metrics.horizontalAdvance(swatch.text);
        const int wide = kBox + kGap + (longest > 0 ? std::min(name, longest) : name);
        if (x > 0 && x + wide > width) {
            x = 0;
            y += kLine;
        }
        layout.places.append(QRect(x, y, wide, kLine));
        x += wide + (longest > 0 ? kTight : kBetween);
    }
    return layout;
}

/// The layout with the longest names that takes no more lines than it may.
LegendStrip::Layout LegendStrip::fitted(QSize plot) const {
    const int width = std::max(60, plot.width() - kBeside);
    const int most = mostLines_ > 0 ? mostLines_ : std::max(kFewestLines, plot.height() * kLinesShare / (100 * kLine));
    const QFontMetrics metrics(font_);
    int longest = 0;
    for (const Swatch& swatch : swatches_) longest = std::max(longest, metrics.horizontalAdvance(swatch.text));
    const int room = width - kBox - kGap; // of a name that is alone in its line
    Layout layout = arrange(width, longest > room ? room : 0);
    for (longest = std::min(longest, room); longest > kLeastName && layout.lines() > most; longest -= 4)
        layout = arrange(width, longest);
    return layout;
}

QStringList LegendStrip::shownNames(QSize plot) const {
    const int longest = fitted(plot).longest;
    const QFontMetrics metrics(font_);
    QStringList names;
    for (const Swatch& swatch : swatches_)
        names << (longest > 0 ? metrics.elidedText(swatch.text, Qt::ElideRight, longest) : swatch.text);
    return names;
}

void LegendStrip::update(UpdatePhase phase) {
    if (phase == upPreparation) {
        // The height depends on the width, and the width is that of the whole picture, which is known before the layout
        // runs.
        const int height = fitted(mParentPlot->viewport().size()).lines() * kLine;
        setMinimumSize(10, height);
        setMaximumSize(QWIDGETSIZE_MAX, height);
    }
    QCPLayoutElement::update(phase);
}

void LegendStrip::applyDefaultAntialiasingHint(QCPPainter* painter) const { painter->setAntialiasing(false); }

void LegendStrip::draw(QCPPainter* painter) {
    painter->setFont(font_);
    const QSize plot = mParentPlot->viewport().size();
    const QVector<QRect> places = fitted(plot).places;
    const QStringList names = shownNames(plot);
    for (qsizetype i = 0; i < places.size(); ++i) {
        const Swatch& swatch = swatches_[i];
        const QRect place = places[i].translated(rect().topLeft());
        const QRect box(place.left(), place.top() + (kLine - kBox) / 2, kBox, kBox);
        if (swatch.mark == Swatch::Mark::Line || swatch.mark == Swatch::Mark::Dashes) {
            const bool dashes = swatch.mark == Swatch::Mark::Dashes;
            painter->setPen(dashes ? QPen(swatch.colour, 1, Qt::DashLine) : QPen(swatch.colour, 2));
            painter->drawLine(QPoint(box.left(), box.center().y()), QPoint(box.right(), box.center().y()));
        } else if (swatch.mark == Swatch::Mark::Dot) {
            painter->setAntialiasing(true);
            painter->setPen(Qt::NoPen);
            painter->setBrush(swatch.colour);
            painter->drawEllipse(QPointF(box.center()), 4.5, 4.5);
            painter->setBrush(Qt::NoBrush);
            painter->setAntialiasing(false);
        } else if (swatch.mark == Swatch::Mark::Diamond) {
            const QPointF middle = QRectF(box).center();
            const double half = kBox / 2.0;
            painter->setAntialiasing(true);
            painter->setPen(QPen(swatch.colour, 1.6));
            painter->drawPolygon(QPolygonF({middle - QPointF(0, half), middle + QPointF(half, 0),
                                            middle + QPointF(0, half), middle - QPointF(half, 0)}));
            painter->setAntialiasing(false);
        } else if (swatch.mark == Swatch::Mark::Tick) {
            painter->setPen(QPen(swatch.colour, 1, Qt::DotLine));
            painter->drawLine(QPoint(box.center().x(), box.top() + 2), QPoint(box.center().x(), box.bottom()));
            painter->setPen(QPen(swatch.colour, 2));
            painter->drawLine(QPoint(box.left() + 2, box.top() + 2), QPoint(box.right() - 2, box.top() + 2));
        } else if (swatch.mark == Swatch::Mark::Frame) {
            painter->setPen(QPen(swatch.colour, 1));
            painter->setBrush(Qt::NoBrush);
            painter->drawRect(box.adjusted(0, 0, -1, -1));
        } else {
            painter->fillRect(box, swatch.colour);
            if (swatch.mark == Swatch::Mark::Foot)
                painter->fillRect(QRect(box.left(), box.bottom() - 2, box.width(), 3), swatch.hatch);
            if (swatch.mark == Swatch::Mark::Hatch) {
                painter->save();
                painter->setClipRect(box, Qt::IntersectClip);
                painter->setPen(QPen(swatch.hatch, 1.5));
                for (int offset = -kBox; offset <= kBox; offset += 4)
                    painter->drawLine(QPointF(box.left() + offset, box.bottom() + 1),
                                      QPointF(box.left() + offset + kBox, box.top()));
                painter->restore();
            }
            painter->setPen(QPen(border_, 1));
            painter->setBrush(Qt::NoBrush);
            painter->drawRect(box.adjusted(0, 0, -1, -1));
        }
        painter->setPen(text_);
        painter->drawText(place.adjusted(kBox + kGap, 0, 40, 0), Qt::AlignVCenter | Qt::AlignLeft | Qt::TextDontClip,
                          names[i]);
    }
}

} // namespace kvscope::ui
