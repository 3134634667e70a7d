#include "ui/plots/heat_plottable.h"

#include "ui/plots/raster.h"
#include "ui/plots/step_columns.h"
#include "ui/theme.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvscope::ui {

HeatPlottable::HeatPlottable(QCPAxis* steps, QCPAxis* rows, const StepPyramid& data)
    : QCPAbstractPlottable(steps, rows), data_(data) {
    lut_.resize(256);
    setColourMap(Theme::sequential);
}

void HeatPlottable::setColourMap(QRgb (*map)(double)) {
    for (std::size_t i = 0; i < lut_.size(); ++i) lut_[i] = map(double(i) / double(lut_.size() - 1));
}

void HeatPlottable::setColours(QCPRange values, const QColor& undefined) {
    values_ = values;
    undefined_ = undefined.rgb();
}

QCPRange HeatPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !data_.empty();
    return {-0.5, data_.steps() - 0.5};
}

QCPRange HeatPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !data_.empty();
    return {-0.5, data_.rows() - 0.5};
}

QImage HeatPlottable::render(QCPRange steps, QCPRange rows, bool rowsDown, QSize size) const {
    QImage image(size, QImage::Format_ARGB32_Premultiplied);
    image.fill(Qt::transparent);
    if (data_.empty()) return image;
    const int width = size.width(), height = size.height();
    const auto columns = stepColumns(steps.lower, steps.upper, width, data_.steps());
    auto lines = stepColumns(rows.lower, rows.upper, height, data_.rows()); // rows of each pixel line, same rule
    if (!rowsDown) std::reverse(lines.begin(), lines.end());

    const double scale = values_.size() > 0 ? 255.0 / values_.size() : 0;
    const auto colour = [&](float value) {
        if (std::isnan(value)) return undefined_;
        return lut_[std::size_t(std::clamp((double(value) - values_.lower) * scale + 0.5, 0.0, 255.0))];
    };
    // One line of colours per distinct group of rows, then whole lines are copied.
    std::vector<StepColumn> groups;
    std::vector<int> groupOf(lines.size(), -1);
    for (std::size_t y = 0; y < lines.size(); ++y) {
        if (lines[y].first >= lines[y].last) continue;
        if (groups.empty() || groups.back() != lines[y]) groups.push_back(lines[y]);
        groupOf[y] = int(groups.size()) - 1;
    }
    std::vector<QRgb> pixels(groups.size() * std::size_t(width), 0);
    std::vector<CellStats> stats(std::size_t(data_.rows()));
    for (int x = 0; x < width; ++x) {
        const StepColumn column = columns[std::size_t(x)];
        if (column.first >= column.last) continue;
        if (x > 0 && columns[std::size_t(x) - 1] == column) {
            for (std::size_t g = 0; g < groups.size(); ++g) {
                QRgb* line = pixels.data() + g * std::size_t(width) + x;
                line[0] = line[-1];
            }
            continue;
        }
        data_.aggregate(column.first, column.last, stats);
        for (std::size_t g = 0; g < groups.size(); ++g) {
            CellStats cell = stats[std::size_t(groups[g].first)];
            for (int row = groups[g].first + 1; row < groups[g].last; ++row) {
                const CellStats& other = stats[std::size_t(row)];
                if (other.count == 0) continue;
                cell.min = cell.count ? std::min(cell.min, other.min) : other.min;
                cell.max = cell.count ? std::max(cell.max, other.max) : other.max;
                cell.sum += other.sum;
                cell.count += other.count;
            }
            pixels[g * std::size_t(width) + std::size_t(x)] = colour(cell.value(aggregate_));
        }
    }
    for (int y = 0; y < height; ++y)
        if (const int g = groupOf[std::size_t(y)]; g >= 0)
            std::memcpy(image.scanLine(y), pixels.data() + std::size_t(g) * std::size_t(width),
                        std::size_t(width) * sizeof(QRgb));
    return image;
}

void HeatPlottable::draw(QCPPainter* painter) {
    const QRect area = mKeyAxis->axisRect()->rect();
    const double scale = deviceScale(*painter);
    const QSize size = deviceSize(area, scale);
    stepsPerPixel_ = mKeyAxis->range().size() / size.width();
    drawDeviceImage(*painter, area, render(mKeyAxis->range(), mValueAxis->range(), mValueAxis->rangeReversed(), size),
                    scale);
}

} // namespace kvscope::ui
