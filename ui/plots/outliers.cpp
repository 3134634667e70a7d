#include "ui/plots/outliers.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
bool higher(const QPointF& a, const QPointF& b) { return a.y() > b.y(); }
} // namespace

void HighestPoints::add(double x, double value) {
    if (std::isnan(value)) return;
    ++count_;
    if (top_.size() == kMost) {
        if (value <= top_.front().y()) return;
        std::pop_heap(top_.begin(), top_.end(), higher);
        top_.back() = {x, value};
    } else {
        top_.emplace_back(x, value);
    }
    std::push_heap(top_.begin(), top_.end(), higher);
}

HighestPoints::Result HighestPoints::result() const {
    Result result;
    std::vector<QPointF> sorted = top_;
    std::sort(sorted.begin(), sorted.end(), higher);
    if (sorted.empty()) return result;
    const std::size_t most = std::clamp<std::size_t>(count_ / 50, 1, kMost - 1);
    std::size_t out = 0;
    for (std::size_t i = 1; i <= most && i < sorted.size(); ++i)
        if (sorted[i].y() > 0 && sorted[i - 1].y() > 2 * sorted[i].y()) out = i;
    result.highest = sorted[out].y();
    sorted.resize(out);
    result.beyond = std::move(sorted);
    return result;
}

} // namespace kvscope::ui
