#include "ui/plots/overlay.h"

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr double kWideCell = 5; // pixels; a cell this wide gets two edges, a narrower one a line through its middle
}

Overlay::Overlay(QCustomPlot* plot, const QString& layer) : QCPLayerable(plot, layer) {}

void Overlay::setMark(QCPAxisRect* panel, const CursorMark& mark) {
    for (auto& [rect, known] : marks_) {
        if (rect == panel) {
            known = mark;
            return;
        }
    }
    marks_.append({panel, mark});
}

void Overlay::clear() { marks_.clear(); }

CursorMark Overlay::markOf(const QCPAxisRect* panel) const {
    for (const auto& [rect, mark] : marks_)
        if (rect == panel) return mark;
    return {};
}

void Overlay::setColours(const QColor& cursor, const QColor& accent) {
    cursor_ = cursor;
    accent_ = accent;
}

void Overlay::applyDefaultAntialiasingHint(QCPPainter* painter) const { painter->setAntialiasing(false); }

void Overlay::cover(QRectF pixels) { covered_ += pixels.toAlignedRect().adjusted(-2, -2, 2, 2); } // + half a pen

void Overlay::drawLine(QCPPainter& painter, QPointF from, QPointF to) {
    painter.drawLine(from, to);
    cover(QRectF(from, to).normalized());
}

void Overlay::draw(QCPPainter* painter) {
    covered_ = {};
    for (const auto& [rect, mark] : marks_) {
        if (!rect || !rect->visible()) continue;
        painter->save();
        painter->setClipRect(rect->rect());
        drawMark(*painter, *rect, mark);
        painter->restore();
    }
    if (box_) {
        QColor fill = accent_;
        fill.setAlpha(40);
        painter->setPen(QPen(accent_, 1));
        painter->setBrush(fill);
        painter->drawRect(*box_);
        cover(*box_);
    }
}

void Overlay::drawMark(QCPPainter& painter, QCPAxisRect& panel, const CursorMark& mark) {
    const QCPAxis* x = panel.axis(QCPAxis::atBottom);
    const QCPAxis* y = panel.axis(QCPAxis::atLeft);
    const QRectF area = panel.rect();
    if (mark.selectedSteps) {
        QColor fill = accent_;
        fill.setAlpha(38);
        const double left = x->coordToPixel(mark.selectedSteps->lower - 0.5);
        const double right = x->coordToPixel(mark.selectedSteps->upper + 0.5);
        const QRectF range(QPointF(std::max(left, area.left()), area.top()),
                           QPointF(std::min(right, area.right()), area.bottom()));
        painter.fillRect(range, fill);
        cover(range.normalized());
    }
    QColor soft = cursor_;
    soft.setAlpha(150);
    painter.setPen(QPen(soft, 1));
    painter.setBrush(Qt::NoBrush);
    const auto edges = [half = mark.size / 2](const QCPAxis* axis, double at) {
        const double a = axis->coordToPixel(at - half), b = axis->coordToPixel(at + half);
        return std::pair{std::min(a, b), std::max(a, b)};
    };
    if (mark.x) {
        const auto [left, right] = edges(x, *mark.x);
        if (right - left >= kWideCell) {
            drawLine(painter, QPointF(left, area.top()), QPointF(left, area.bottom()));
            drawLine(painter, QPointF(right, area.top()), QPointF(right, area.bottom()));
        } else {
            const double middle = x->coordToPixel(*mark.x);
            drawLine(painter, QPointF(middle, area.top()), QPointF(middle, area.bottom()));
        }
    }
    if (mark.y) {
        const auto [top, bottom] = edges(y, *mark.y);
        if (bottom - top >= kWideCell) {
            drawLine(painter, QPointF(area.left(), top), QPointF(area.right(), top));
            drawLine(painter, QPointF(area.left(), bottom), QPointF(area.right(), bottom));
        } else {
            const double middle = y->coordToPixel(*mark.y);
            drawLine(painter, QPointF(area.left(), middle), QPointF(area.right(), middle));
        }
    }
    if (mark.x && mark.y) { // a solid frame around the cell itself
        const auto [left, right] = edges(x, *mark.x);
        const auto [top, bottom] = edges(y, *mark.y);
        if (right - left >= kWideCell && bottom - top >= kWideCell) {
            painter.setPen(QPen(cursor_, 2));
            painter.drawRect(QRectF(QPointF(left, top), QPointF(right, bottom)));
            cover(QRectF(QPointF(left, top), QPointF(right, bottom)));
        }
    }
}

} // namespace kvscope::ui
