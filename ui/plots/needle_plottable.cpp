#include "ui/plots/needle_plottable.h"

#include "ui/plots/step_columns.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

void NeedlePlottable::setColours(const std::array<QColor, kNeedleOrigins>& origins, const QColor& missed,
                                 const QColor& ground) {
    origins_ = origins;
    missed_ = missed;
    ground_ = ground;
}

QCPRange NeedlePlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = sights_ != nullptr && !sights_->empty() && !sights_->front().empty();
    return found ? QCPRange(-0.5, double(sights_->front().back().step) + 0.5) : QCPRange();
}

QCPRange NeedlePlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = sights_ != nullptr && !sights_->empty();
    return found ? QCPRange(-0.5, double(sights_->size()) - 0.5) : QCPRange();
}

void NeedlePlottable::draw(QCPPainter* painter) {
    if (sights_ == nullptr) return;
    painter->setPen(Qt::NoPen);
    for (std::size_t lane = 0; lane < sights_->size(); ++lane) drawLane(*painter, (*sights_)[lane], int(lane));
}

void NeedlePlottable::drawLane(QCPPainter& painter, const std::vector<NeedleSight>& sights, int lane) const {
    constexpr double kGap = 3; // logical pixels between lanes
    const QRect area = keyAxis()->axisRect()->rect();
    const double top = std::min(valueAxis()->coordToPixel(lane - 0.5), valueAxis()->coordToPixel(lane + 0.5)) + kGap;
    const double bottom = std::max(valueAxis()->coordToPixel(lane - 0.5), valueAxis()->coordToPixel(lane + 0.5));
    const double height = bottom - top;
    if (height < 2 || area.width() < 1) return;
    painter.fillRect(QRectF(area.left(), bottom - 1, area.width(), 1), ground_);
    if (sights.empty()) return;
    const QCPRange range = keyAxis()->range();
    const auto columns = stepColumns(range.lower, range.upper, area.width(), sights.back().step + 1);
    const auto isBefore = [](const NeedleSight& sight, int step) { return sight.step < step; };
    for (std::size_t x = 0; x < columns.size(); ++x) {
        std::array<double, kNeedleOrigins> shares{};
        double missed = 0;
        int counted = 0;
        for (auto sight = std::lower_bound(sights.begin(), sights.end(), columns[x].first, isBefore);
             sight != sights.end() && sight->step < columns[x].last; ++sight) {
            ++counted;
            for (std::size_t origin = 0; origin < shares.size(); ++origin)
                shares[origin] += double(sight->byOrigin[origin]) / sight->choosing;
            missed = std::max(missed, double(sight->missed) / sight->choosing);
        }
        if (counted == 0) continue;
        double foot = bottom;
        const double left = double(area.left()) + double(x);
        for (std::size_t origin = 0; origin < shares.size(); ++origin) {
            const double part = shares[origin] / counted * height;
            if (part <= 0) continue;
            const double tall = std::max(part, 1.0); // one head among many is seen too
            painter.fillRect(QRectF(left, std::max(foot - tall, top), 1, tall), origins_[origin]);
            foot -= part;
        }
        if (missed > 0) painter.fillRect(QRectF(left, std::max(bottom - missed * height - 1, top), 1, 2), missed_);
    }
}

} // namespace kvscope::ui
