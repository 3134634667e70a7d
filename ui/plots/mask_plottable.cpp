#include "ui/plots/mask_plottable.h"

#include "ui/plots/raster.h"
#include "ui/plots/step_columns.h"
#include "ui/theme.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kTile = 16;        // columns rendered side by side: one cache line of pixels per image line
constexpr double kGapFrom = 7;   // logical pixels: larger cells are separated by a gap
constexpr double kHatchFrom = 2; // logical pixels: in smaller cells a hatch is noise that hides the origins
constexpr double kHatch = 4;     // logical pixels from one hatch line to the next
} // namespace

MaskPlottable::MaskPlottable(QCPAxis* steps, QCPAxis* blocks, const MaskPyramid& data)
    : QCPAbstractPlottable(steps, blocks), data_(data) {
    applyTheme(Theme::current());
}

void MaskPlottable::setColouring(Colouring colouring, bool hatchMisses) {
    colouring_ = colouring;
    hatch_ = hatchMisses;
    rebuildColours();
}

void MaskPlottable::applyTheme(const Theme& theme) {
    for (std::size_t i = 0; i < origin_.size(); ++i) origin_[i] = theme.origin[i].rgb();
    hit_ = theme.hit.rgb();
    miss_ = theme.miss.rgb();
    hatchRgb_ = hatchColour(theme).rgb();
    rebuildColours();
}

QColor MaskPlottable::hatchColour(const Theme& theme) {
    return theme.plotBackground.lightnessF() < 0.5f ? theme.miss.darker(260) : theme.miss;
}

int MaskPlottable::shownOrigin(MaskBits bits) {
    for (const int origin : {2, 3, 4, 1, 0})
        if (bits & (1 << origin)) return origin;
    return -1;
}

void MaskPlottable::rebuildColours() {
    for (std::size_t bits = 0; bits < colour_.size(); ++bits) {
        const int origin = shownOrigin(MaskBits(bits));
        colour_[bits] = origin < 0                           ? 0u
                        : colouring_ == Colouring::Residency ? ((bits & kMaskMiss) ? miss_ : hit_)
                                                             : origin_[std::size_t(origin)];
    }
}

QCPRange MaskPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = data_.steps() > 0;
    return {-0.5, data_.steps() - 0.5};
}

QCPRange MaskPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = data_.blocks() > 0;
    return {-0.5, data_.blocks() - 0.5};
}

QImage MaskPlottable::render(QCPRange steps, QCPRange blocks, QSize size, double scale) const {
    QImage image(size, QImage::Format_ARGB32_Premultiplied);
    image.fill(Qt::transparent);
    const int width = size.width(), height = size.height();
    if (data_.steps() == 0 || blocks.size() <= 0) return image;
    const auto columns = stepColumns(steps.lower, steps.upper, width, data_.steps());
    const double pixelsPerBlock = height / blocks.size(), pixelsPerStep = width / steps.size();

    // Image lines [top, bottom) of every block; block 0 is at the bottom. At least one line each, so that a lone block
    // of thousands is still seen.
    const auto count = std::size_t(data_.blocks());
    const bool gapY = pixelsPerBlock >= kGapFrom * scale, gapX = pixelsPerStep >= kGapFrom * scale;
    const int gap = std::max(1, int(std::lround(scale)));
    std::vector<std::pair<int, int>> lines(count, {0, 0});
    for (std::size_t b = 0; b < count; ++b) {
        const double high = (blocks.upper - (double(b) + 0.5)) * pixelsPerBlock;
        const double low = (blocks.upper - (double(b) - 0.5)) * pixelsPerBlock;
        if (low <= 0 || high >= height) continue;
        int top = int(std::floor(high + 1e-6)), bottom = int(std::floor(low + 1e-6));
        if (bottom <= top) bottom = top + 1;
        if (gapY) top += gap;
        lines[b] = {std::max(top, 0), std::min(bottom, height)};
    }

    const int hatchPeriod = std::max(3, int(std::lround(kHatch * scale)));
    const int hatchWidth = std::max(1, int(std::lround(scale)));
    const bool hatch =
        hatch_ && colouring_ == Colouring::Origin && std::min(pixelsPerBlock, pixelsPerStep) >= kHatchFrom * scale;
    std::vector<MaskBits> tile(std::size_t(kTile) * std::size_t(height));
    for (int x0 = 0; x0 < width; x0 += kTile) {
        const int wide = std::min(kTile, width - x0);
        std::fill(tile.begin(), tile.end(), MaskBits(0));
        bool any = false;
        for (int i = 0; i < wide; ++i) {
            const StepColumn column = columns[std::size_t(x0 + i)];
            MaskBits* bits = tile.data() + std::size_t(i) * std::size_t(height);
            if (column.first >= column.last) continue;
            if (gapX) { // the first pixels of a step's cell stay empty
                const double left = (double(column.first) - 0.5 - steps.lower) * pixelsPerStep;
                if (x0 + i < int(std::floor(left + 1e-6)) + gap) continue;
            }
            if (i > 0 && columns[std::size_t(x0 + i - 1)] == column && !gapX) {
                std::copy(bits - height, bits, bits);
                continue;
            }
            data_.forEach(column.first, column.last, [&](int block, MaskBits value) {
                const auto [top, bottom] = lines[std::size_t(block)];
                for (int y = top; y < bottom; ++y) bits[y] = MaskBits(bits[y] | value);
            });
            any = true;
        }
        if (!any) continue;
        for (int y = 0; y < height; ++y) {
            QRgb* line = reinterpret_cast<QRgb*>(image.scanLine(y)) + x0;
            for (int i = 0; i < wide; ++i) {
                const MaskBits bits = tile[std::size_t(i) * std::size_t(height) + std::size_t(y)];
                if (!bits) continue;
                const bool struck = hatch && (bits & kMaskMiss) && (x0 + i + y) % hatchPeriod < hatchWidth;
                line[i] = struck ? hatchRgb_ : colour_[bits & 127];
            }
        }
    }
    return image;
}

void MaskPlottable::draw(QCPPainter* painter) {
    const QRect area = mKeyAxis->axisRect()->rect();
    const double scale = deviceScale(*painter);
    const QSize size = deviceSize(area, scale);
    stepsPerPixel_ = mKeyAxis->range().size() / size.width();
    blocksPerPixel_ = mValueAxis->range().size() / size.height();
    hatchVisible_ = std::max(stepsPerPixel_, blocksPerPixel_) * scale * kHatchFrom <= scale;
    drawDeviceImage(*painter, area, render(mKeyAxis->range(), mValueAxis->range(), size, scale), scale);
}

} // namespace kvscope::ui
