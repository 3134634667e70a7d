#include "ui/views/compare/difference_plots.h"

#include "ui/look/theme.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

/// Draws a line through one value of each layer, and widens `range` to the values.
void drawLayerLine(const std::vector<LayerDelta>& deltas, double LayerDelta::*value, QCPAxisRect& panel,
                   const QColor& colour, QCPRange& range) {
    auto* graph = new QCPGraph(panel.axis(QCPAxis::atBottom), panel.axis(QCPAxis::atLeft));
    graph->setPen(QPen(colour, 1));
    graph->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, colour, colour, 5));
    for (const LayerDelta& delta : deltas)
        if (const double v = delta.*value; !std::isnan(v)) {
            graph->addData(delta.layer, v);
            range.expand(v);
        }
}

/// Draws the differences above 0, or the others, as bars of one colour with their intervals, and widens `range`.
void drawDeltaBars(const std::vector<LayerDelta>& deltas, bool above, QCPAxisRect& panel, QCPRange& range) {
    QCPAxis *x = panel.axis(QCPAxis::atBottom), *y = panel.axis(QCPAxis::atLeft);
    auto* bars = new QCPBars(x, y);
    bars->setWidth(0.7);
    bars->setPen(Qt::NoPen);
    bars->setBrush(QColor(Theme::diverging(above ? 0.85 : 0.15)));
    auto* whiskers = new QCPErrorBars(x, y);
    whiskers->setDataPlottable(bars);
    whiskers->setSymbolGap(0);
    whiskers->setPen(QPen(Theme::current().text, 1));
    whiskers->removeFromLegend();
    QVector<double> keys, values, minus, plus;
    for (const LayerDelta& delta : deltas) {
        const Interval& i = delta.delta;
        if (std::isnan(i.value) || (i.value > 0) != above) continue;
        keys << delta.layer;
        values << i.value;
        const bool known = !std::isnan(i.low);
        minus << (known ? i.value - i.low : 0);
        plus << (known ? i.high - i.value : 0);
        range.expand(i.value);
        if (known) range.expand(QCPRange(i.low, i.high));
    }
    bars->setData(keys, values);
    whiskers->setData(minus, plus);
}

QCPRange withRoomAbove(const QCPRange& range) {
    return {range.lower, range.upper > range.lower ? range.upper * 1.08 : range.lower + 1};
}

} // namespace

DifferenceColours differenceColours(const StepPyramid& differences) {
    constexpr double kShare = 0.99, kFarBeyond = 3, kRoom = 1.5; // of the sampled values; times the value of that share
    const CellStats all = differences.range(0, differences.steps());
    double high = all.count ? std::max(std::abs(double(all.min)), std::abs(double(all.max))) : 0;
    bool capped = false;
    std::vector<float> sample;
    const auto rows = std::size_t(differences.rows()), cells = std::size_t(differences.steps()) * rows;
    const std::size_t stride = std::max<std::size_t>(1, cells / 8192) | 1; // odd, so that all rows are sampled
    for (std::size_t i = 0; i < cells; i += stride) {
        const float v = differences.at(int(i / rows), int(i % rows));
        if (!std::isnan(v)) sample.push_back(std::abs(v));
    }
    if (!sample.empty()) {
        const auto at = sample.begin() + std::ptrdiff_t(double(sample.size() - 1) * kShare);
        std::nth_element(sample.begin(), at, sample.end());
        if (*at > 0 && high > kFarBeyond * double(*at)) {
            high = kRoom * double(*at);
            capped = true;
        }
    }
    if (!(high > 0)) high = 1;
    return {{-high, high}, capped};
}

LayerRanges drawLayers(const std::vector<LayerDelta>& deltas, QCPAxisRect& means, QCPAxisRect& differences,
                       const QColor& colourA, const QColor& colourB) {
    LayerRanges ranges{{0, 0}, {0, 0}};
    drawLayerLine(deltas, &LayerDelta::a, means, colourA, ranges.means);
    drawLayerLine(deltas, &LayerDelta::b, means, colourB, ranges.means);
    for (const bool above : {false, true}) drawDeltaBars(deltas, above, differences, ranges.differences);
    if (ranges.differences.size() == 0) ranges.differences.upper = 1;
    ranges.differences = {ranges.differences.lower * 1.1, ranges.differences.upper * 1.1};
    ranges.means = withRoomAbove(ranges.means);
    return ranges;
}

LayerRanges drawLayers(const std::vector<LayerDelta>& deltas, QCPAxisRect& values, const QColor& colour) {
    LayerRanges ranges{{0, 0}, {0, 1}};
    drawLayerLine(deltas, &LayerDelta::a, values, colour, ranges.means);
    ranges.means = withRoomAbove(ranges.means);
    return ranges;
}

} // namespace kvscope::ui
