#include "ui/views/colour_range.h"
#include "base/indexed.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvscope::ui {

namespace {

/// A sorted sample of at most about 8,192 cells.
std::vector<float> sampledCells(const StepPyramid& data) {
    std::vector<float> sample;
    const std::size_t cells = std::size_t(data.steps()) * std::size_t(data.rows());
    const std::size_t stride = std::max<std::size_t>(1, cells / 8192) | 1; // odd: not in step with the rows
    const auto rows = std::size_t(data.rows());
    data.tiles().forEachTile([&](const HeatTile& tile) {
        for (std::size_t i = rows; i < std::size_t(tile.steps()) * rows; i += stride) {
            const float v = tile.at(int(i / rows), int(i % rows));
            if (!std::isnan(v)) sample.push_back(v);
        }
    });
    std::sort(sample.begin(), sample.end());
    return sample;
}

double percentile(NumberedSpan<const float> sorted, double part) {
    return sorted.empty() ? 0 : double(sorted[int((sorted.count() - 1) * part)]);
}

} // namespace

ColourScale colourScale(const StepPyramid& data, const MetricInfo& metric, ColourRange range) {
    const CellStats decode = data.range(data.steps() > 1 ? 1 : 0, data.steps());
    ColourScale scale;
    if (decode.count > 0) scale.smallest = double(decode.min), scale.largest = double(decode.max);
    if (range == ColourRange::Natural) {
        scale.low = std::isnan(metric.fixedMin) ? std::min(0.0, scale.smallest) : metric.fixedMin;
        scale.high = metric.fixedMax;
        if (std::isnan(scale.high)) {
            scale.high = scale.largest;
            // One interrupted step must not darken all others: beyond three times the 99th percentile the scale ends.
            const double usual = percentile(sampledCells(data), 0.99);
            if (usual > 0 && scale.high > 3 * usual) scale.high = 1.5 * usual;
        }
        if (!(scale.high > scale.low)) scale.high = scale.low + 1;
        return scale;
    }
    scale.low = scale.smallest;
    scale.high = scale.largest;
    if (range == ColourRange::Robust) {
        const std::vector<float> cells = sampledCells(data);
        if (!cells.empty()) scale.low = percentile(cells, 0.01), scale.high = percentile(cells, 0.99);
    }
    if (!(scale.high > scale.low)) scale.low = scale.high - 0.01 * std::max(std::abs(scale.high), 1.0); // all the same
    return scale;
}

} // namespace kvscope::ui
