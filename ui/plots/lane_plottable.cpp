#include "ui/plots/lane_plottable.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr double kLaneGapFrom = 5; // logical pixels; lanes of at least this height are separated by a gap
constexpr double kTicksFrom = 3;   // logical pixels; lower lanes get no ticks
} // namespace

LanePlottable::LanePlottable(QCPAxis* time, QCPAxis* lanes) : QCPAbstractPlottable(time, lanes) {
    setAntialiased(false);
}

void LanePlottable::setData(std::vector<Bar> bars, std::vector<Mark> marks) {
    bars_ = std::move(bars);
    marks_ = std::move(marks);
}

void LanePlottable::setColours(std::vector<QColor> states, const QColor& mark) {
    states_ = std::move(states);
    mark_ = mark;
}

QCPRange LanePlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !bars_.empty();
    QCPRange range(0, 0);
    for (const Bar& bar : bars_) range.expand(QCPRange(bar.from, bar.to));
    return range;
}

QCPRange LanePlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !bars_.empty();
    QCPRange range(-0.5, 0.5);
    for (const Bar& bar : bars_) range.expand(QCPRange(bar.lane - 0.5, bar.lane + 0.5));
    return range;
}

void LanePlottable::draw(QCPPainter* painter) {
    const QCPRange time = keyAxis()->range(), lanes = valueAxis()->range();
    const double height = std::abs(valueAxis()->coordToPixel(1) - valueAxis()->coordToPixel(0));
    const double gap = height >= kLaneGapFrom ? 1 : 0;
    painter->setPen(Qt::NoPen);
    const auto seen = [&](double from, double to, double lane) {
        return to >= time.lower && from <= time.upper && lane + 0.5 >= lanes.lower && lane - 0.5 <= lanes.upper;
    };
    for (const Bar& bar : bars_) {
        if (!seen(bar.from, bar.to, bar.lane) || bar.state < 0 || bar.state >= int(states_.size())) continue;
        const double left = keyAxis()->coordToPixel(std::max(bar.from, time.lower));
        const double right = keyAxis()->coordToPixel(std::min(bar.to, time.upper));
        const double top = valueAxis()->coordToPixel(bar.lane - 0.5) + gap;
        painter->fillRect(QRectF(left, top, std::max(right - left, 1.0), std::max(height - gap, 1.0)),
                          states_[bar.state]);
    }
    if (height < kTicksFrom) return;
    painter->setPen(QPen(mark_, 1));
    for (const Mark& mark : marks_) {
        if (!seen(mark.at, mark.at, mark.lane)) continue;
        const QPointF middle(keyAxis()->coordToPixel(mark.at), valueAxis()->coordToPixel(mark.lane));
        const double half = std::min((height - gap) / 2, 5.0);
        if (mark.cross) {
            painter->drawLine(middle + QPointF(-half, -half), middle + QPointF(half, half));
            painter->drawLine(middle + QPointF(-half, half), middle + QPointF(half, -half));
        } else {
            painter->drawLine(middle + QPointF(0, -half), middle + QPointF(0, half));
        }
    }
}

} // namespace kvscope::ui
