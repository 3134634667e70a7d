#include "ui/plots/stack_plottable.h"

#include "base/extents.h"
#include "base/indexed.h"
#include "ui/plots/raster.h"
#include "ui/plots/step_columns.h"

#include <QApplication>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope::ui {

namespace {
constexpr double kSeparate = 6; // logical pixels of a bar's width from which a gap separates the bars of steps

/// Calls part(i, top, bottom) with the pixels of every part of a stack that is larger than 0. A part of less than half
/// a pixel may be invisible, but it still moves the next part up.
template <class Part> void stack(const QCPAxis& axis, const std::vector<double>& parts, double factor, Part&& part) {
    double sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const double low = sum;
        sum += std::max(parts[i], 0.0) * factor;
        if (sum > low) part(i, axis.coordToPixel(sum), axis.coordToPixel(low));
    }
}
} // namespace

StepStackPlottable::StepStackPlottable(QCPAxis* steps, QCPAxis* values, const StepPyramid& data)
    : QCPAbstractPlottable(steps, values), data_(data) {}

void StepStackPlottable::setColours(std::vector<QColor> components, const QColor& extreme) {
    colours_ = std::move(components);
    extreme_ = extreme;
}

double StepStackPlottable::largest(QCPRange steps) const {
    if (data_.rows() == 0) return 0;
    const CellStats stats =
        data_.stats(data_.rows() - 1, int(std::ceil(steps.lower - 0.5)), int(std::floor(steps.upper + 0.5)) + 1);
    return stats.count ? double(stats.max) : 0;
}

QCPRange StepStackPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !data_.empty();
    return {-0.5, data_.steps() - 0.5};
}

QCPRange StepStackPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !data_.empty();
    return {0, largest({0, double(data_.steps())})};
}

void StepStackPlottable::draw(QCPPainter* painter) {
    if (data_.rows() < 2) return;
    const QRect area = mKeyAxis->axisRect()->rect();
    const double scale = deviceScale(*painter);
    stepsPerPixel_ = mKeyAxis->range().size() / (area.width() * scale);
    const auto components = std::size_t(data_.rows() - 1);
    std::vector<CellStats> stats(components + 1);
    std::vector<double> parts(components);
    const auto load = [&](int first, int last) {
        data_.aggregate(first, last, stats);
        for (std::size_t i = 0; i < components; ++i)
            parts[i] = stats[i].count ? stats[i].sum / double(stats[i].count) : 0;
        const double total = std::accumulate(parts.begin(), parts.end(), 0.0);
        return relative_ ? (total > 0 ? 100.0 / total : 0) : 1.0;
    };
    painter->setAntialiasing(false);
    painter->setPen(Qt::NoPen);
    const double pixelsPerStep = 1 / stepsPerPixel_ / scale;
    if (pixelsPerStep >= 3) { // few steps are drawn as rectangles, which stay rectangles in a vector file
        const int first = std::max(0, int(std::floor(mKeyAxis->range().lower)));
        const int last = std::min(data_.steps(), int(std::ceil(mKeyAxis->range().upper)) + 1);
        const double gap = pixelsPerStep >= kSeparate ? 1 : 0;
        for (int step = first; step < last; ++step) {
            const double factor = load(step, step + 1);
            const double left = std::round(mKeyAxis->coordToPixel(step - 0.5)) + gap;
            const double right = std::round(mKeyAxis->coordToPixel(step + 0.5));
            stack(*mValueAxis, parts, factor, [&](std::size_t i, double top, double bottom) {
                painter->fillRect(QRectF(QPointF(left, top), QPointF(right, bottom)), colours_[i]);
            });
        }
        return;
    }
    const QSize size = deviceSize(area, scale);
    QImage image = deviceImage(size);
    image.fill(Qt::transparent);
    const auto columns = stepColumns(mKeyAxis->range().lower, mKeyAxis->range().upper, size.width(), data_.steps());
    Numbered<int> extremes(columns.count(), -1);
    std::vector<QRgb> rgb(components);
    for (std::size_t i = 0; i < components; ++i) rgb[i] = colours_[i].rgb();
    const double offset = area.top();
    const auto toLine = [&](double pixel) {
        return std::clamp(int(std::lround((pixel - offset) * scale)), 0, size.height());
    };
    // Makes sixteen columns at a time and copies them line by line into the image. Writing the image column by column
    // would touch another cache line for every pixel.
    constexpr int kTile = 16;
    const int width = size.width(), height = size.height();
    const Extents<int, int> cells(kTile, height);
    std::vector<QRgb> tile(cells.size()); // [column][line]
    for (int x0 = 0; x0 < width; x0 += kTile) {
        const int wide = std::min(kTile, width - x0);
        std::fill(tile.begin(), tile.end(), QRgb(0));
        for (int i = 0; i < wide; ++i) {
            const int x = x0 + i;
            if (columns[x].first >= columns[x].last) continue;
            QRgb* line = tile.data() + cells.first(i);
            const double factor = load(columns[x].first, columns[x].last);
            stack(*mValueAxis, parts, factor, [&](std::size_t component, double top, double bottom) {
                std::fill(line + toLine(top), line + std::max(toLine(top), toLine(bottom)), rgb[component]);
            });
            if (!relative_ && stats[components].count)
                extremes[x] = toLine(mValueAxis->coordToPixel(double(stats[components].max)));
        }
        for (int y = 0; y < height; ++y) {
            QRgb* out = reinterpret_cast<QRgb*>(image.scanLine(y)) + x0;
            for (int i = 0; i < wide; ++i) out[i] = tile[cells.offset(i, y)];
        }
    }
    const auto stride = image.bytesPerLine() / qsizetype(sizeof(QRgb));
    auto* pixels = reinterpret_cast<QRgb*>(image.bits());
    // Draws a line through the longest step of each pixel column, because the mean alone would hide a single slow step.
    const QRgb line = extreme_.rgb();
    const int thick = std::max(1, int(std::lround(scale)));
    for (std::size_t x = 0; x < columns.size(); ++x) {
        if (extremes[x] < 0) continue;
        int from = extremes[x], to = extremes[x];
        if (x > 0 && extremes[x - 1] >= 0) {
            from = std::min(from, extremes[x - 1]);
            to = std::max(to, extremes[x - 1]);
        }
        for (int y = std::max(from, 0); y < std::min(to + thick, size.height()); ++y)
            pixels[y * stride + qsizetype(x)] = line;
    }
    drawDeviceImage(*painter, area, image, scale);
}

double StackBar::total() const { return std::accumulate(parts.begin(), parts.end(), 0.0); }

BarStackPlottable::BarStackPlottable(QCPAxis* keys, QCPAxis* values) : QCPAbstractPlottable(keys, values) {}

void BarStackPlottable::setColours(std::vector<QColor> components, const QColor& text) {
    colours_ = std::move(components);
    text_ = text;
}

std::pair<int, int> BarStackPlottable::at(double key, double value) const {
    for (std::size_t b = 0; b < bars_.size(); ++b) {
        const StackBar& bar = bars_[b];
        if (std::abs(key - bar.centre) > bar.width / 2) continue;
        const double total = bar.total(), factor = relative_ ? (total > 0 ? 100.0 / total : 0) : 1.0;
        double sum = 0;
        for (std::size_t i = 0; i < bar.parts.size(); ++i) {
            const double low = sum;
            sum += bar.parts[i] * factor;
            if (value >= low && value < sum) return {int(b), int(i)};
        }
        return {int(b), -1};
    }
    return {-1, -1};
}

QCPRange BarStackPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !bars_.empty();
    return found ? QCPRange(bars_.front().centre - 0.5, bars_.back().centre + 0.5) : QCPRange(0, 1);
}

QCPRange BarStackPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    double high = 0;
    for (const StackBar& bar : bars_) high = std::max(high, bar.total());
    found = high > 0;
    return {0, relative_ ? 100 : high};
}

void BarStackPlottable::draw(QCPPainter* painter) {
    painter->setAntialiasing(false);
    const QFont font = mKeyAxis->tickLabelFont();
    const QFontMetrics metrics(font);
    for (const StackBar& bar : bars_) {
        const double total = bar.total(), factor = relative_ ? (total > 0 ? 100.0 / total : 0) : 1.0;
        const double left = std::round(mKeyAxis->coordToPixel(bar.centre - bar.width / 2));
        const double right = std::max(left + 1, std::round(mKeyAxis->coordToPixel(bar.centre + bar.width / 2)));
        // Labels are drawn from the bottom up; this is the top of the last one, which the next may not overlap.
        double lastLabel = std::numeric_limits<double>::infinity();
        painter->setFont(font);
        stack(*mValueAxis, bar.parts, factor, [&](std::size_t i, double top, double bottom) {
            painter->setPen(Qt::NoPen);
            painter->fillRect(QRectF(QPointF(left, top), QPointF(right, bottom)), colours_[i]);
            if (i >= bar.labels.size() || bar.labels[i].isEmpty()) return;
            const double middle = (top + bottom) / 2, half = metrics.height() / 2.0;
            if (bottom - top < 3 || middle + half > lastLabel) return;
            lastLabel = middle - half;
            painter->setPen(text_);
            painter->drawText(QRectF(right + 10, middle - half, 400, 2 * half),
                              Qt::AlignLeft | Qt::AlignVCenter | Qt::TextDontClip, bar.labels[i]);
        });
        if (bar.foot.isValid()) {
            const double base = mValueAxis->coordToPixel(0);
            painter->setPen(Qt::NoPen);
            painter->fillRect(QRectF(left, base - 4, right - left, 4), bar.foot);
        }
    }
}

} // namespace kvscope::ui
