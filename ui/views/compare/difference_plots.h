// What the page Difference draws: the colours of its heatmap, and the means and differences of layers.
#pragma once

#include "profiler/compare/difference.h"
#include "profiler/tiles/step_pyramid.h"
#include "ui/frame/units.h"

#include <qcustomplot.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvscope::ui {

/// Ticks at whole numbers, of which the first is `origin`.
class OffsetTicker final : public QCPAxisTicker {
public:
    explicit OffsetTicker(int origin) : origin_(origin) {}

protected:
    double getTickStep(const QCPRange& range) override {
        return std::max(1.0, std::round(QCPAxisTicker::getTickStep(range)));
    }
    int getSubTickCount(double) override { return 0; }
    QString getTickLabel(double tick, const QLocale&, QChar, int) override {
        return formatCount(std::llround(tick) + origin_);
    }

private:
    int origin_;
};

struct DifferenceColours {
    QCPRange range;
    bool capped = false; // some values lie beyond the range
};
/// The range of colours for these differences, symmetric around 0, so that the neutral colour means no difference. A
/// few steps with very large differences are left out of the range, because they would pale all others.
DifferenceColours differenceColours(const StepPyramid& differences);

/// Ranges of the value axes that show everything drawn.
struct LayerRanges {
    QCPRange means, differences;
};
/// Draws the mean of each layer in both runs, and the difference of these means with its interval.
LayerRanges drawLayers(const std::vector<LayerDelta>& deltas, QCPAxisRect& means, QCPAxisRect& differences,
                       const QColor& colourA, const QColor& colourB);
/// Draws one value of each layer, `LayerDelta::a`.
LayerRanges drawLayers(const std::vector<LayerDelta>& deltas, QCPAxisRect& values, const QColor& colour);

} // namespace kvscope::ui
