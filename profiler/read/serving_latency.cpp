#include "profiler/read/serving_latency.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvscope {
namespace {

constexpr std::int64_t kForMedian = 20, kForHigh = 1000; // samples, so that ten lie beyond the percentile

struct Sample {
    double at = 0, value = 0; // ns
};

/// Linear between order statistics. values: not empty; their order changes.
double quantileOf(std::vector<double>& values, double p) {
    const double place = p * double(values.size() - 1);
    const auto low = std::size_t(place);
    const auto nth = values.begin() + std::ptrdiff_t(low);
    std::nth_element(values.begin(), nth, values.end());
    const double below = *nth;
    if (low + 1 >= values.size()) return below;
    return below + (*std::min_element(nth + 1, values.end()) - below) * (place - double(low));
}

/// Goes through samples in the order of their times with a window whose end only moves forward.
class Window {
public:
    explicit Window(std::vector<Sample> samples) : samples_(std::move(samples)) {
        std::stable_sort(samples_.begin(), samples_.end(),
                         [](const Sample& a, const Sample& b) { return a.at < b.at; });
    }
    /// The samples after `from` up to `to`.
    LatencyWindow of(double from, double to) {
        while (last_ < samples_.size() && samples_[last_].at <= to) ++last_;
        while (first_ < last_ && samples_[first_].at <= from) ++first_;
        constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
        LatencyWindow window{std::int64_t(last_ - first_), kUnknown, kUnknown, true};
        if (window.samples == 0) return window;
        values_.clear();
        for (std::size_t i = first_; i < last_; ++i) values_.push_back(samples_[i].value);
        window.isLargest = window.samples < kForHigh;
        window.high = window.isLargest ? *std::max_element(values_.begin(), values_.end()) : quantileOf(values_, 0.99);
        if (window.samples >= kForMedian) window.median = quantileOf(values_, 0.5);
        return window;
    }

private:
    std::vector<Sample> samples_;
    std::vector<double> values_;
    std::size_t first_ = 0, last_ = 0;
};

} // namespace

std::vector<LatencyPoint> latencyOverTime(const std::vector<RequestRow>& requests, const std::vector<TokenGap>& gaps,
                                          double endNs, double windowNs, int count) {
    std::vector<Sample> first, between;
    for (const RequestRow& request : requests)
        if (request.firstTokenNs >= 0)
            first.push_back({double(request.firstTokenNs), double(request.firstTokenNs) - double(request.arrivalNs)});
    between.reserve(gaps.size());
    for (const TokenGap& gap : gaps) between.push_back({double(gap.ns), double(gap.gapNs)});
    Window firsts(std::move(first)), betweens(std::move(between));
    std::vector<LatencyPoint> points;
    for (int i = 1; i <= count; ++i) {
        LatencyPoint& point = points.emplace_back();
        point.ns = endNs * i / count;
        point.firstToken = firsts.of(point.ns - windowNs, point.ns);
        point.gap = betweens.of(point.ns - windowNs, point.ns);
    }
    return points;
}

} // namespace kvscope
