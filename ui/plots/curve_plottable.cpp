#include "ui/plots/curve_plottable.h"

#include "ui/plots/area_fill.h"
#include "ui/plots/clipped_line.h"
#include "ui/plots/raster.h"
#include "ui/plots/step_columns.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kDot = 2;    // radius of a dot, in logical pixels
constexpr double kSmooth = 3; // device pixels per step from which the line is drawn antialiased
} // namespace

CurvePlottable::CurvePlottable(QCPAxis* steps, QCPAxis* values, const StepPyramid& data, int row)
    : QCPAbstractPlottable(steps, values), data_(data), row_(row) {
    mBrush = Qt::NoBrush;
}

double CurvePlottable::value(int step) const {
    return row_ < data_.rows() ? double(data_.at(step, row_)) : std::nan("");
}

CellStats CurvePlottable::within(QCPRange steps) const {
    return data_.stats(row_, std::max(0, int(std::ceil(steps.lower))), int(std::floor(steps.upper)) + 1);
}

QCPRange CurvePlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !data_.empty();
    return {-0.5, data_.steps() - 0.5};
}

QCPRange CurvePlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    const CellStats all = data_.stats(row_, 0, data_.steps());
    found = all.count > 0;
    return found ? QCPRange(double(all.min), double(all.max)) : QCPRange();
}

void CurvePlottable::drawStretch(QCPPainter& painter, const QPolygonF& line, bool filled) const {
    if (line.isEmpty()) return;
    const bool unclipped = painter.paintEngine() && painter.paintEngine()->type() == QPaintEngine::SVG;
    const QRectF area = unclipped ? QRectF(clipRect()) : line.boundingRect().adjusted(-1, -1, 1, 1); // the whole line
    const auto stretches = unclipped ? stretchesWithin(area, line) : std::vector{line};
    for (const QPolygonF& stretch : stretches) {
        if (filled && mBrush.style() != Qt::NoBrush) {
            painter.setBrush(mBrush);
            fillBelow(painter, stretch, mValueAxis->coordToPixel(0));
        }
        painter.setBrush(Qt::NoBrush);
        painter.setPen(mPen);
        if (stretch.size() == 1)
            painter.drawPoint(stretch.first()); // its neighbours are undefined
        else
            painter.drawPolyline(stretch);
    }
    if (!dots_) return;
    painter.setPen(mPen);
    painter.setBrush(mPen.color());
    for (const QPointF& point : line)
        if (area.contains(point)) painter.drawEllipse(point, kDot, kDot);
}

void CurvePlottable::draw(QCPPainter* painter) {
    if (row_ >= data_.rows()) return;
    const QRect area = mKeyAxis->axisRect()->rect();
    const int pixels = deviceSize(area, deviceScale(*painter)).width();
    const QCPRange range = mKeyAxis->range();
    const bool single = range.size() <= pixels; // every step has a pixel or more
    painter->setAntialiasing(range.size() * kSmooth <= pixels);
    QPolygonF line;
    if (single) {
        // One step beyond each edge is drawn, so that the line leads out of the plot.
        const int first = std::max(0, int(std::floor(range.lower)) - 1);
        const int last = std::min(data_.steps() - 1, int(std::ceil(range.upper)) + 1);
        for (int step = first; step <= last; ++step) {
            const CellStats cell = data_.stats(row_, step, step + 1); // of the preview if the step is not read yet
            if (cell.count > 0) {
                line << QPointF(mKeyAxis->coordToPixel(step), mValueAxis->coordToPixel(double(cell.max)));
                continue;
            }
            drawStretch(*painter, line, true);
            line.clear();
        }
        drawStretch(*painter, line, true);
        return;
    }
    const auto columns = stepColumns(range.lower, range.upper, pixels, data_.steps());
    const double width = double(area.width()) / pixels;
    for (std::size_t x = 0; x < columns.size(); ++x) {
        const CellStats cell = data_.stats(row_, columns[x].first, columns[x].last);
        if (cell.count == 0) {
            drawStretch(*painter, line, false);
            line.clear();
            continue;
        }
        const double at = area.left() + (double(x) + 0.5) * width;
        const QPointF low(at, mValueAxis->coordToPixel(double(cell.min)));
        const QPointF high(at, mValueAxis->coordToPixel(double(cell.max)));
        // Adds the end nearer to the last point first. The line between two pixel columns then stays within their
        // values.
        const bool lowFirst =
            line.isEmpty() || std::abs(line.last().y() - low.y()) <= std::abs(line.last().y() - high.y());
        line << (lowFirst ? low : high);
        if (low.y() != high.y()) line << (lowFirst ? high : low);
    }
    drawStretch(*painter, line, false);
}

} // namespace kvscope::ui
