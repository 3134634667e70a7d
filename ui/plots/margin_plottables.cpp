#include "ui/plots/margin_plottables.h"

#include "base/indexed.h"
#include "ui/plots/area_fill.h"
#include "ui/plots/raster.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

QCPRange StepMargin::getKeyRange(bool& found, QCP::SignDomain) const {
    found = false;
    return {};
}

QCPRange StepMargin::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = false;
    return {};
}

void StepMargin::draw(QCPPainter* painter) {
    const QRect area = mKeyAxis->axisRect()->rect();
    const int pixels = deviceSize(area, deviceScale(*painter)).width();
    const std::vector<float> columns = columns_(pixels);
    const double width = double(area.width()) / std::max<double>(1, double(columns.size()));
    const double base = mValueAxis->coordToPixel(mValueAxis->range().lower);
    QPolygonF line;
    const auto flush = [&] { // draws the columns since the last one without a value
        if (line.isEmpty()) return;
        if (filled_) {
            QColor fill = mPen.color();
            fill.setAlpha(70);
            painter->setBrush(fill);
            fillBelow(*painter, line, base);
        }
        painter->setBrush(Qt::NoBrush);
        painter->setPen(mPen);
        painter->drawPolyline(line);
        line.clear();
    };
    for (std::size_t x = 0; x < columns.size(); ++x) {
        if (std::isnan(columns[x])) {
            flush();
            continue;
        }
        const double y = mValueAxis->coordToPixel(double(columns[x]));
        const double left = area.left() + double(x) * width;
        // Every column is a level stroke, so that a wide cell looks like a stair; equal neighbours make one stroke.
        if (!line.isEmpty() && line.last().y() == y)
            line.last().setX(left + width);
        else
            line << QPointF(left, y) << QPointF(left + width, y);
    }
    flush();
}

void RowMargin::setInner(std::vector<float> values, const QColor& colour) {
    inner_ = std::move(values);
    innerColour_ = colour;
}

QCPRange RowMargin::getKeyRange(bool& found, QCP::SignDomain) const {
    found = false;
    return {};
}

QCPRange RowMargin::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = false;
    return {};
}

void RowMargin::draw(QCPPainter* painter) {
    drawBars(*painter, values_, mBrush.color());
    if (!inner_.empty()) drawBars(*painter, inner_, innerColour_);
}

void RowMargin::drawBars(QCPPainter& painter, NumberedSpan<const float> values, const QColor& colour) const {
    const QCPRange rows = mValueAxis->range();
    const int first = std::max(0, int(std::floor(rows.lower + 0.5)));
    const int last = std::min(int(values.size()), int(std::ceil(rows.upper + 0.5)));
    const double base = mKeyAxis->coordToPixel(mKeyAxis->range().lower);
    // Where several rows share a pixel line, the line shows the longest of their bars.
    double lineTop = 0, lineBottom = 0, lineEnd = base;
    bool open = false;
    const auto flush = [&] {
        if (open && lineEnd > base)
            painter.fillRect(QRectF(QPointF(base, lineTop), QPointF(lineEnd, lineBottom)), colour);
        open = false;
        lineEnd = base;
    };
    const double rowPixels = std::abs(mValueAxis->coordToPixel(1) - mValueAxis->coordToPixel(0));
    const double gap = rowPixels >= 8 ? 1 : 0; // with lower rows the picture would be mostly gaps
    for (int row = first; row < last; ++row) {
        const double a = mValueAxis->coordToPixel(row - 0.5), b = mValueAxis->coordToPixel(row + 0.5);
        const double top = std::round(std::min(a, b));
        double bottom = std::round(std::max(a, b));
        if (bottom <= top) bottom = top + 1;
        if (!open || top != lineTop) {
            flush();
            lineTop = top;
            lineBottom = std::max(top + 1, bottom - gap);
            open = true;
        }
        const float value = values[row];
        if (!std::isnan(value)) lineEnd = std::max(lineEnd, mKeyAxis->coordToPixel(double(value)));
    }
    flush();
}

} // namespace kvscope::ui
