#include "ui/plots/mask_plottable.h"

#include "base/extents.h"
#include "base/indexed.h"
#include "ui/look/theme.h"
#include "ui/plots/pieces.h"
#include "ui/plots/raster.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kTile = 16;        // columns made side by side, so that an image line takes a whole cache line at a time
constexpr double kHatchFrom = 2; // logical pixels; smaller cells get no hatch, which would hide the origins
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

void MaskPlottable::setZoomed(Zoomed zoomed) {
    zoomed_ = zoomed;
    ++colours_;
}

void MaskPlottable::applyTheme(const Theme& theme) {
    for (std::size_t i = 0; i < origin_.size(); ++i) origin_[i] = theme.origin[i].rgb();
    hit_ = theme.hit.rgb();
    miss_ = theme.miss.rgb();
    unknown_ = theme.mutedText.rgb(); // the run does not know whether its blocks were resident
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
    ++colours_;
    for (std::size_t bits = 0; bits < colour_.size(); ++bits) {
        const int origin = shownOrigin(MaskBits(bits));
        colour_[bits] = origin < 0                           ? 0u
                        : colouring_ == Colouring::Residency ? ((bits & kMaskMiss)  ? miss_
                                                                : (bits & kMaskHit) ? hit_
                                                                                    : unknown_)
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

/// Which blocks each image line shows; block 0 is at the bottom. Every block lies on at least one line, so that a
/// single selected block among thousands stays visible: several lines show one block, or several blocks share one line.
struct MaskPlottable::Lines {
    MaskBands bands;      // each band is a range of blocks that one or more lines show
    Numbered<int> bandOf; // [line from the top] its band; -1: the line shows no block

    Lines(QCPRange range, int count, int height, int gap) : bandOf(height, -1) {
        const double pixelsPerBlock = height / range.size();
        const int first = std::clamp(int(std::floor(range.lower + 0.5)), 0, count);
        const int last = std::clamp(int(std::ceil(range.upper + 0.5)), first, count);
        std::vector<int> starts;
        int highest = height; // top line of the block before
        for (int block = first; block < last; ++block) {
            const double high = (range.upper - (block + 0.5)) * pixelsPerBlock;
            const double low = (range.upper - (block - 0.5)) * pixelsPerBlock;
            if (low <= 0 || high >= height) continue;
            int top = int(std::floor(high + 1e-6)), bottom = int(std::floor(low + 1e-6));
            if (bottom <= top) bottom = top + 1;
            top = std::max(top + gap, 0);
            bottom = std::min(bottom, height);
            if (top >= bottom) continue;                           // all its lines are outside of the image
            const bool shares = !starts.empty() && top >= highest; // on one line of the image with the block before
            if (!shares) starts.push_back(block);
            for (int y = top; y < std::min(bottom, highest); ++y) bandOf[y] = int(starts.size()) - 1;
            highest = std::min(highest, top);
            end = block + 1;
        }
        if (!starts.empty()) starts.push_back(end);
        bands = MaskBands(std::move(starts));
    }

private:
    int end = 0; // one after the last block
};

QRgb MaskPlottable::shareColour(MaskBits bits, std::uint64_t selected, std::uint64_t missed,
                                std::uint64_t cells) const {
    if (selected == 0 || cells == 0) return 0;
    QRgb full = colour_[bits & 127];
    if (colouring_ == Colouring::Residency) {
        const auto mix = [&](int hit, int miss) {
            return int((std::uint64_t(hit) * (selected - missed) + std::uint64_t(miss) * missed) / selected);
        };
        full = qRgb(mix(qRed(hit_), qRed(miss_)), mix(qGreen(hit_), qGreen(miss_)), mix(qBlue(hit_), qBlue(miss_)));
    }
    constexpr double faintest = 0.12; // the share of a single selected cell stays visible
    const double share = faintest + (1 - faintest) * double(selected) / double(cells);
    return qPremultiply(qRgba(qRed(full), qGreen(full), qBlue(full), int(255 * share + 0.5)));
}

/// Copies pixel columns from the frame before, from column x on, as long as they cover the same steps. @return how many
/// it copied
int MaskPlottable::reuse(const Frame& before, int x, QImage& image) const {
    const auto& columns = frame_.columns; // of the image that render is making
    const auto at = std::lower_bound(before.columns.begin(), before.columns.end(), columns[x],
                                     [](const StepColumn& a, const StepColumn& b) { return a.first < b.first; });
    const int from = int(at - before.columns.begin());
    int count = 0;
    while (from + count < before.columns.count() && x + count < columns.count() &&
           before.columns[from + count] == columns[x + count])
        ++count;
    for (int y = 0; y < image.height() && count > 0; ++y)
        std::copy_n(reinterpret_cast<const QRgb*>(before.image.constScanLine(y)) + from, count,
                    reinterpret_cast<QRgb*>(image.scanLine(y)) + x);
    return count;
}

QImage MaskPlottable::render(QCPRange steps, QCPRange blocks, QSize size, double scale) const {
    QImage image = deviceImage(size);
    const int width = size.width(), height = size.height();
    if (data_.steps() == 0 || blocks.size() <= 0) {
        image.fill(Qt::transparent);
        return image;
    }
    const double pixelsPerBlock = height / blocks.size(), pixelsPerStep = width / steps.size();
    const bool gapY = pixelsPerBlock >= kCellGapFrom * scale, gapX = pixelsPerStep >= kCellGapFrom * scale;
    const int gap = std::max(1, int(std::lround(scale)));
    const Lines lines(blocks, data_.blocks(), height, gapY ? gap : 0);
    const int hatchPeriod = std::max(3, int(std::lround(kHatch * scale)));
    const int hatchWidth = std::max(1, int(std::lround(scale)));
    const bool hatch =
        hatch_ && colouring_ == Colouring::Origin && std::min(pixelsPerBlock, pixelsPerStep) >= kHatchFrom * scale;
    const bool shares = zoomed_ == Zoomed::Share && (pixelsPerBlock < 1 || pixelsPerStep < 1);

    const Frame before = std::exchange(
        frame_, {{}, stepColumns(steps.lower, steps.upper, width, data_.steps()), blocks, data_.revision(), colours_});
    const auto& columns = frame_.columns;
    const bool reusable = !hatch && !gapX && pixelsPerStep < 1 && before.image.size() == size &&
                          before.blocks == blocks && before.revision == data_.revision() && before.colours == colours_;
    Numbered<std::pair<int, int>> pieces; // pixel columns to make; each: first, one after the last
    for (int x = 0; x < width;) {
        const StepColumn column = columns[x];
        const int copied = reusable && column.first < column.last ? reuse(before, x, image) : 0;
        if (copied == 0 && (pieces.empty() || pieces.back().second != x || x - pieces.back().first == kTile))
            pieces.emplace_back(x, x);
        if (copied == 0) pieces.back().second = x + 1;
        x += std::max(copied, 1);
    }

    const int bands = lines.bands.count();
    const Extents<int, int> cells(bands, kTile);          // [band][column of a piece]
    auto* pixels = reinterpret_cast<QRgb*>(image.bits()); // before the threads start: bits() may copy the image
    const auto stride = image.bytesPerLine() / qsizetype(sizeof(QRgb));
    forEachPiece(pieces.count(), [&](int piece) {
        const auto [first, last] = pieces[piece];
        MaskBandSums sums(lines.bands, shares);
        std::vector<QRgb> colours(cells.size()); // [band][column]
        std::vector<MaskBits> bits(hatch ? colours.size() : 0);
        for (int x = first; x < last; ++x) {
            const StepColumn column = columns[x];
            if (column.first >= column.last) continue;
            if (gapX) { // the first pixels of a step's cell are the gap
                const double left = (double(column.first) - 0.5 - steps.lower) * pixelsPerStep;
                if (x < int(std::ceil(left - 1e-6)) + gap) continue; // it begins with the first whole pixel
            }
            const int covered = data_.bands(column.first, column.last, sums);
            for (int band = 0; band < bands; ++band) {
                const std::size_t at = cells.offset(band, x - first);
                const MaskBits all = sums.bits(band);
                if (!all) continue;
                if (hatch) bits[at] = all;
                colours[at] = shares ? shareColour(all, sums.selected(band), sums.missed(band),
                                                   std::uint64_t(covered) * std::uint64_t(lines.bands.width(band)))
                                     : colour_[all & 127];
            }
        }
        for (int y = 0; y < height; ++y) {
            QRgb* line = pixels + y * stride + first;
            const int band = lines.bandOf[y];
            if (band < 0) {
                std::fill_n(line, last - first, 0u);
                continue;
            }
            std::copy_n(colours.data() + cells.first(band), last - first, line);
            for (int x = first; hatch && x < last; ++x)
                if ((bits[cells.offset(band, x - first)] & kMaskMiss) && (x + y) % hatchPeriod < hatchWidth)
                    line[x - first] = hatchRgb_;
        }
    });
    image.setDevicePixelRatio(scale); // before frame_ shares the image: the call would copy it then
    if (!gapX && !hatch) frame_.image = image;
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
