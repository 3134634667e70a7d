#include "ui/plots/mask_plottable.h"

#include "ui/plots/raster.h"
#include "ui/theme.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

void MaskPlottable::setZoomed(Zoomed zoomed) {
    zoomed_ = zoomed;
    ++colours_;
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
    ++colours_;
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

/// The blocks of every image line; block 0 is at the bottom. A block has at least one line, so that a lone block of
/// thousands is still seen.
struct MaskPlottable::Lines {
    std::vector<StepColumn> blocks; // of each line; first == last: none
    int first = 0, last = 0;        // blocks that have a line

    Lines(QCPRange range, int count, int height, int gap) : blocks(std::size_t(height)) {
        const double pixelsPerBlock = height / range.size();
        first = std::clamp(int(std::floor(range.lower + 0.5)), 0, count);
        last = std::clamp(int(std::ceil(range.upper + 0.5)), first, count);
        for (int block = first; block < last; ++block) {
            const double high = (range.upper - (block + 0.5)) * pixelsPerBlock;
            const double low = (range.upper - (block - 0.5)) * pixelsPerBlock;
            if (low <= 0 || high >= height) continue;
            int top = int(std::floor(high + 1e-6)), bottom = int(std::floor(low + 1e-6));
            if (bottom <= top) bottom = top + 1;
            for (int y = std::max(top + gap, 0); y < std::min(bottom, height); ++y) {
                StepColumn& line = blocks[std::size_t(y)];
                if (line.first == line.last) line.first = block;
                line.last = block + 1;
            }
        }
    }
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
    constexpr double faintest = 0.12; // what was selected once stays visible
    const double share = faintest + (1 - faintest) * double(selected) / double(cells);
    return qPremultiply(qRgba(qRed(full), qGreen(full), qBlue(full), int(std::lround(255 * share))));
}

/// Copies the pixel columns from x on that the picture before has too. @return how many
int MaskPlottable::reuse(const Frame& before, int x, QImage& image) const {
    const auto& columns = frame_.columns; // of the picture that is being made
    const auto at = std::lower_bound(before.columns.begin(), before.columns.end(), columns[std::size_t(x)],
                                     [](const StepColumn& a, const StepColumn& b) { return a.first < b.first; });
    const auto from = std::size_t(at - before.columns.begin());
    std::size_t count = 0;
    while (from + count < before.columns.size() && std::size_t(x) + count < columns.size() &&
           before.columns[from + count] == columns[std::size_t(x) + count])
        ++count;
    for (int y = 0; y < image.height() && count > 0; ++y)
        std::copy_n(reinterpret_cast<const QRgb*>(before.image.constScanLine(y)) + from, count,
                    reinterpret_cast<QRgb*>(image.scanLine(y)) + x);
    return int(count);
}

QImage MaskPlottable::render(QCPRange steps, QCPRange blocks, QSize size, double scale) const {
    QImage image(size, QImage::Format_ARGB32_Premultiplied);
    image.fill(Qt::transparent);
    const int width = size.width(), height = size.height();
    if (data_.steps() == 0 || blocks.size() <= 0) return image;
    const double pixelsPerBlock = height / blocks.size(), pixelsPerStep = width / steps.size();
    const bool gapY = pixelsPerBlock >= kGapFrom * scale, gapX = pixelsPerStep >= kGapFrom * scale;
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

    const auto count = std::size_t(data_.blocks());
    std::vector<MaskBits> bits(count);
    std::vector<std::uint32_t> selected(shares ? count : 0), missed(shares ? count : 0);
    std::vector<QRgb> strip(std::size_t(kTile) * std::size_t(height)); // columns side by side, one after the other
    int held = 0, heldFrom = 0;
    const auto flush = [&] {
        for (int y = 0; y < height && held > 0; ++y) {
            QRgb* line = reinterpret_cast<QRgb*>(image.scanLine(y)) + heldFrom;
            for (int i = 0; i < held; ++i) line[i] = strip[std::size_t(i) * std::size_t(height) + std::size_t(y)];
        }
        held = 0;
    };
    StepColumn inBits{-1, -1}; // whose blocks are in `bits`
    int stepsHere = 0;
    const auto paint = [&](int x, QRgb* out) {
        for (int y = 0; y < height; ++y) {
            const StepColumn line = lines.blocks[std::size_t(y)];
            MaskBits all = 0;
            for (int block = line.first; block < line.last; ++block) all |= bits[std::size_t(block)];
            if (!all) continue;
            if (!shares) {
                const bool struck = hatch && (all & kMaskMiss) && (x + y) % hatchPeriod < hatchWidth;
                out[y] = struck ? hatchRgb_ : colour_[all & 127];
                continue;
            }
            std::uint64_t taken = 0, fetched = 0;
            for (int block = line.first; block < line.last; ++block) {
                taken += selected[std::size_t(block)];
                fetched += missed[std::size_t(block)];
            }
            out[y] = shareColour(all, taken, fetched, std::uint64_t(stepsHere) * std::uint64_t(line.last - line.first));
        }
    };
    for (int x = 0; x < width; ++x) {
        const StepColumn column = columns[std::size_t(x)];
        if (reusable && column.first < column.last) {
            if (const int copied = reuse(before, x, image); copied > 0) {
                flush();
                x += copied - 1;
                continue;
            }
        }
        if (held == kTile) flush();
        if (held == 0) heldFrom = x;
        QRgb* out = strip.data() + std::size_t(held++) * std::size_t(height);
        std::fill_n(out, height, 0u);
        if (column.first >= column.last) continue;
        if (gapX) { // the first pixels of a step's cell stay empty
            const double left = (double(column.first) - 0.5 - steps.lower) * pixelsPerStep;
            if (x < int(std::floor(left + 1e-6)) + gap) continue;
        }
        if (column != inBits) {
            data_.bits(column.first, column.last, bits);
            if (shares) stepsHere = data_.counts(column.first, column.last, {selected, missed});
            inBits = column;
        }
        paint(x, out);
    }
    flush();
    image.setDevicePixelRatio(scale); // here, where nobody shares it yet
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
