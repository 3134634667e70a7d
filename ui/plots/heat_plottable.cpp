#include "ui/plots/heat_plottable.h"

#include "base/extents.h"
#include "base/indexed.h"
#include "ui/look/theme.h"
#include "ui/plots/pieces.h"
#include "ui/plots/raster.h"
#include "ui/plots/step_columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

namespace kvscope::ui {

HeatPlottable::HeatPlottable(QCPAxis* steps, QCPAxis* rows, const StepPyramid& data)
    : QCPAbstractPlottable(steps, rows), data_(data) {
    setColourMap(Theme::sequential);
}

void HeatPlottable::setColourMap(QRgb (*map)(double)) {
    map_ = map;
    lut_.resize(256);
    for (std::size_t i = 0; i < lut_.size(); ++i) lut_[i] = map_(double(i) / double(lut_.size() - 1));
}

void HeatPlottable::setColours(QCPRange values, const QColor& undefined) {
    values_ = values;
    undefined_ = undefined.rgb();
    setColourMap(map_); // fills the colour table again: the user may have chosen another colour map
}

QCPRange HeatPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !data_.empty();
    return {-0.5, data_.steps() - 0.5};
}

QCPRange HeatPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !data_.empty();
    return {-0.5, places() - 0.5};
}

namespace {

constexpr int kPiece = 64; // pixel columns that a thread makes at a time

/// Holds for every row of the data what one pixel column needs of it: sum and count for a mean, or the extreme.
class RowAggregates {
public:
    RowAggregates(const StepPyramid& data, Aggregate aggregate, bool sums)
        : data_(data), aggregate_(aggregate), sums_(sums || aggregate == Aggregate::Mean) {
        const auto rows = std::size_t(data.rows());
        sum_.resize(rows);
        count_.resize(rows);
        extreme_.resize(rows);
    }
    void take(StepColumn steps) {
        if (sums_) data_.sums(steps.first, steps.last, sum_, count_);
        if (aggregate_ != Aggregate::Mean) data_.extremes(steps.first, steps.last, aggregate_, extreme_);
    }
    /// Aggregate of several rows together; NaN if none has a value.
    template <class Rows> float value(const Rows& rows) const {
        if (aggregate_ == Aggregate::Mean) return mean(rows);
        float result = std::numeric_limits<float>::quiet_NaN();
        for (const int row : rows) {
            const float v = extreme_[row];
            if (std::isinf(v)) continue;
            if (std::isnan(result) || (aggregate_ == Aggregate::Min ? v < result : v > result)) result = v;
        }
        return result;
    }
    template <class Rows> float mean(const Rows& rows) const {
        double sum = 0;
        std::int64_t count = 0;
        for (const int row : rows) {
            sum += sum_[row];
            count += count_[row];
        }
        return count > 0 ? float(sum / double(count)) : std::numeric_limits<float>::quiet_NaN();
    }

private:
    const StepPyramid& data_;
    Aggregate aggregate_;
    bool sums_;
    Numbered<double> sum_;
    Numbered<std::int64_t> count_;
    Numbered<float> extreme_;
};

} // namespace

QImage HeatPlottable::render(QCPRange steps, QCPRange rows, bool rowsDown, QSize size,
                             Numbered<float>* columnMeans) const {
    QImage image = deviceImage(size);
    image.fill(Qt::transparent);
    const int width = size.width(), height = size.height();
    if (columnMeans) columnMeans->assign(width, std::numeric_limits<float>::quiet_NaN());
    if (data_.empty()) return image;
    const auto columns = stepColumns(steps.lower, steps.upper, width, data_.steps());
    // The rows of each pixel line follow the rule for the steps of a pixel column.
    auto lines = stepColumns(rows.lower, rows.upper, height, places());
    if (!rowsDown) std::reverse(lines.begin(), lines.end());

    const double scale = values_.size() > 0 ? 255.0 / values_.size() : 0;
    const auto colour = [&](float value) {
        if (std::isnan(value)) return undefined_;
        return lut_[int(std::clamp((double(value) - values_.lower) * scale + 0.5, 0.0, 255.0))];
    };
    Numbered<int> dataRows(places());
    for (int place = 0; place < places(); ++place) dataRows[place] = dataRow(place);
    // Pixel lines that show the same rows form a group. A group's colours are computed once and then copied to each of
    // its lines.
    std::vector<StepColumn> bands;
    Numbered<std::span<const int>> groups;
    Numbered<int> groupOf(lines.count(), -1);
    int firstPlace = places(), lastPlace = 0;
    for (int y = 0; y < lines.count(); ++y) {
        const StepColumn line = lines[y];
        if (line.first >= line.last) continue;
        if (bands.empty() || bands.back() != line) {
            bands.push_back(line);
            groups.push_back(NumberedSpan<const int>(dataRows).part(line.first, line.last - line.first));
            firstPlace = std::min(firstPlace, line.first);
            lastPlace = std::max(lastPlace, line.last);
        }
        groupOf[y] = groups.count() - 1;
    }
    if (groups.empty()) return image;
    const auto visible = NumberedSpan<const int>(dataRows).part(firstPlace, lastPlace - firstPlace);
    const Extents<int, int> cells(groups.count(), width);
    std::vector<QRgb> pixels(cells.size(), 0); // [group][column]
    const auto& tiles = data_.tiles();
    forEachPiece((width + kPiece - 1) / kPiece, [&](int piece) {
        RowAggregates aggregates(data_, aggregate_, columnMeans != nullptr);
        const int left = piece * kPiece;
        for (int x = left; x < std::min(left + kPiece, width); ++x) {
            const StepColumn column = columns[x];
            if (column.first >= column.last) continue;
            if (x > left && columns[x - 1] == column) {
                for (int g = 0; g < groups.count(); ++g) {
                    QRgb* line = pixels.data() + cells.offset(g, x);
                    line[0] = line[-1];
                }
                if (columnMeans) (*columnMeans)[x] = (*columnMeans)[x - 1];
                continue;
            }
            if (!tiles.hasPreview() && !tiles.knows(column.first) && !tiles.knows(column.last - 1)) continue;
            aggregates.take(column);
            for (int g = 0; g < groups.count(); ++g) pixels[cells.offset(g, x)] = colour(aggregates.value(groups[g]));
            if (columnMeans) (*columnMeans)[x] = aggregates.mean(visible);
        }
    });
    for (int y = 0; y < height; ++y)
        if (const int g = groupOf[y]; g >= 0) {
            const auto line = cells.part(std::span<const QRgb>(pixels), g);
            std::memcpy(image.scanLine(y), line.data(), line.size_bytes());
        }
    return image;
}

void HeatPlottable::draw(QCPPainter* painter) {
    const QRect area = mKeyAxis->axisRect()->rect();
    const double scale = deviceScale(*painter);
    const QSize size = deviceSize(area, scale);
    stepsPerPixel_ = mKeyAxis->range().size() / size.width();
    rowsPerPixel_ = mValueAxis->range().size() / size.height();
    drawDeviceImage(*painter, area,
                    render(mKeyAxis->range(), mValueAxis->range(), mValueAxis->rangeReversed(), size, &columnMeans_),
                    scale);
}

} // namespace kvscope::ui
