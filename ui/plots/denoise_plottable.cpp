#include "ui/plots/denoise_plottable.h"

#include "base/indexed.h"
#include "ui/look/theme.h"
#include "ui/plots/raster.h"
#include "ui/plots/step_columns.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
// logical pixels; smaller cells have no marks, and a cell that was written has one colour
constexpr double kMarkFrom = 6;
constexpr double kBlockFrom = 5; // logical pixels; blocks of less height have no frame

QColor mixed(const QColor& a, const QColor& b, double share) {
    const auto part = [share](int x, int y) { return int(std::lround(x + (y - x) * share)); };
    return {part(a.red(), b.red()), part(a.green(), b.green()), part(a.blue(), b.blue())};
}
} // namespace

DenoisePlottable::DenoisePlottable(QCPAxis* steps, QCPAxis* rows, const DenoiseSteps& data)
    : QCPAbstractPlottable(steps, rows), data_(data) {
    setAntialiased(false); // antialiasing would move the image by half a pixel
    applyTheme(Theme::current());
}

void DenoisePlottable::setNumber(Number number, double highest) {
    number_ = number;
    highest_ = highest > 0 ? highest : 1;
    applyTheme(Theme::current());
}

QColor DenoisePlottable::writtenBefore(const Theme& theme) {
    return mixed(theme.plotBackground, theme.mutedText, 0.22);
}
QColor DenoisePlottable::dense(const Theme& theme) { return mixed(theme.plotBackground, theme.mutedText, 0.5); }
QColor DenoisePlottable::unknown(const Theme& theme) { return theme.undefinedCell; }
QColor DenoisePlottable::active(const Theme& theme) { return theme.miss; }

void DenoisePlottable::applyTheme(const Theme& theme) {
    for (std::size_t i = 0; i < lut_.size(); ++i) lut_[i] = Theme::sequential(double(i) / double(lut_.size() - 1));
    before_ = writtenBefore(theme).rgb();
    without_ = (number_ == Number::Active ? dense(theme) : unknown(theme)).rgb();
    written_ = theme.text.rgb();
    mark_ = theme.text;
    halo_ = theme.plotBackground;
    active_ = active(theme);
    block_ = theme.plotAxis;
}

QCPRange DenoisePlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = data_.steps() > 0;
    return {-0.5, data_.steps() - 0.5};
}

QCPRange DenoisePlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !data_.empty();
    if (rows_ == Rows::Block) return {-0.5, data_.longestBlock() - 0.5};
    return {data_.lowest() - 0.5, data_.highest() + 0.5};
}

float DenoisePlottable::numberOf(const ForwardCell& cell) const {
    switch (number_) {
    case Number::Confidence:
        return cell.confidence;
    case Number::Change:
        return cell.change;
    case Number::Active:
        return cell.active;
    }
    return 0;
}

/// The pixels of one column of the image. They are filled again for every column.
class DenoisePlottable::Column {
public:
    Column(QCPRange rows, int height, int gap)
        : lower_(rows.lower), perRow_(height / rows.size()), height_(height), gap_(gap) {
        pixels_.resize(height);
    }
    void clear() { std::fill(pixels_.begin(), pixels_.end(), Pixel()); }
    /// Calls visit(pixel) for the pixels of one row.
    template <class Visit> void forRow(int row, const Visit& visit) {
        const int top = std::max(pixelOf(row - 0.5) + gap_, 0);
        int bottom = pixelOf(row + 0.5);
        if (bottom < top + 1 - gap_) bottom = top + 1; // several rows share a pixel, and at least one is drawn
        for (int y = top; y < std::min(bottom, height_); ++y) visit(pixels_[y]);
    }
    /// Lets the pixels of rows first..last show tokens that were written before.
    void writtenBefore(int first, int last) {
        const auto mark = [](Pixel& pixel) { pixel.before = true; };
        if (perRow_ < 1) {
            const int end = std::min(pixelOf(last + 0.5), height_);
            for (int y = std::max(pixelOf(first - 0.5), 0); y < end; ++y) mark(pixels_[y]);
            return;
        }
        const int from = std::max(first, int(std::floor(lower_)));
        for (int row = from; row <= last && pixelOf(row - 0.5) < height_; ++row) forRow(row, mark);
    }
    const Pixel& at(int y) const { return pixels_[y]; }

private:
    int pixelOf(double row) const {
        return int(std::clamp(std::floor((row - lower_) * perRow_ + 1e-6), -1.0, height_ + 1.0));
    }
    double lower_, perRow_;
    int height_, gap_;
    Numbered<Pixel> pixels_;
};

QRgb DenoisePlottable::colourOf(const Pixel& pixel, bool showsWritten) const {
    if (pixel.written && showsWritten) return written_;
    if (pixel.count > 0)
        return lut_[std::size_t(std::clamp(double(pixel.sum) / pixel.count / highest_ * 255 + 0.5, 0.0, 255.0))];
    if (pixel.without > 0) return without_;
    return pixel.before ? before_ : 0;
}

QImage DenoisePlottable::render(QCPRange steps, QCPRange rows, QSize size, double scale) const {
    QImage image = deviceImage(size);
    image.fill(Qt::transparent);
    if (data_.empty() || rows.size() <= 0) return image;
    const int width = size.width(), height = size.height();
    const double perStep = width / steps.size(), perRow = height / rows.size();
    const int gap = std::max(1, int(std::lround(scale)));
    const int gapX = std::min(perStep, perRow) >= kCellGapFrom * scale ? gap : 0;
    const bool showsWritten = std::min(perStep, perRow) < kMarkFrom * scale;
    Column column(rows, height, perRow >= kCellGapFrom * scale ? gap : 0);
    const auto columns = stepColumns(steps.lower, steps.upper, width, data_.steps());
    auto* pixels = reinterpret_cast<QRgb*>(image.bits());
    const auto stride = image.bytesPerLine() / qsizetype(sizeof(QRgb));
    Numbered<QRgb> line(height, 0);
    Forward latest; // the last forward before the column that is drawn
    bool begun = false;
    for (int x = 0; x < width; ++x) {
        const StepColumn shown = columns[x];
        if (shown.first >= shown.last) continue;
        if (x == 0 || columns[x - 1] != shown) {
            column.clear();
            if (!std::exchange(begun, true)) latest = data_.before(shown.first);
            int settled = latest ? latest.lastPosition() : data_.lowest() - 1; // positions up to here are written
            bool some = false;
            const bool known = data_.tiles().knows(shown.first);
            for (int step = data_.next(shown.first, shown.last); step < shown.last;
                 step = data_.next(step + 1, shown.last)) {
                const Forward forward = data_.at(step);
                if (!forward) continue;
                latest = forward;
                settled = forward.firstPosition() - 1;
                some = true;
                for (const ForwardCell& cell : forward.cells)
                    column.forRow(rowOf(forward, cell.position), [&](Pixel& pixel) {
                        const float number = numberOf(cell);
                        pixel.written |= cell.written;
                        if (!std::isnan(number))
                            pixel.sum += number, ++pixel.count;
                        else if (number_ == Number::Confidence)
                            pixel.before = true;
                        else
                            ++pixel.without;
                    });
            }
            // A step without a forward lies behind the end of the sequence, unless the filter leaves the step out.
            if (rows_ == Rows::Sequence && (some || (known && allSteps_ && latest)))
                column.writtenBefore(data_.lowest(), settled);
            for (int y = 0; y < height; ++y) line[y] = colourOf(column.at(y), showsWritten);
        }
        if (gapX > 0) { // the first pixels of a step's cell are the gap
            const double left = (double(shown.first) - 0.5 - steps.lower) * perStep;
            if (x < int(std::ceil(left - 1e-6)) + gapX) continue; // a step's cell begins with the first whole pixel
        }
        for (int y = 0; y < height; ++y) pixels[y * stride + x] = line[y];
    }
    return image;
}

QRectF DenoisePlottable::cellRect(int step, int row) const {
    return {QPointF(mKeyAxis->coordToPixel(step - 0.5), mValueAxis->coordToPixel(row - 0.5)),
            QPointF(mKeyAxis->coordToPixel(step + 0.5), mValueAxis->coordToPixel(row + 0.5))};
}

void DenoisePlottable::drawBlocks(QCPPainter& painter) const {
    painter.setAntialiasing(false);
    painter.setPen(QPen(block_, 1));
    painter.setBrush(Qt::NoBrush);
    const QRectF area = mKeyAxis->axisRect()->rect();
    for (const auto& [number, block] : data_.blocks()) {
        const int above = rows_ == Rows::Block ? block.firstPosition : 0; // position of the first row
        const QRectF frame(cellRect(block.firstStep, block.firstPosition - above).topLeft(),
                           cellRect(block.lastStep, block.lastPosition - above).bottomRight());
        if (frame.height() < kBlockFrom || frame.width() < kBlockFrom || !frame.intersects(area)) continue;
        painter.drawRect(QRectF(QPointF(std::round(frame.left()), std::round(frame.top())),
                                QPointF(std::round(frame.right()), std::round(frame.bottom()))));
    }
}

void DenoisePlottable::drawMarks(QCPPainter& painter) const {
    const QCPRange steps = mKeyAxis->range(), rows = mValueAxis->range();
    const int first = std::max(0, int(std::floor(steps.lower + 0.5)));
    const int last = std::min(data_.steps() - 1, int(std::ceil(steps.upper - 0.5)));
    for (int step = data_.next(first, last + 1); step <= last; step = data_.next(step + 1, last + 1)) {
        const Forward forward = data_.at(step);
        for (const ForwardCell& cell : forward.cells) {
            const int row = rowOf(forward, cell.position);
            if (row < rows.lower - 0.5 || row > rows.upper + 0.5) continue;
            const bool active = marksActive_ && number_ != Number::Active && cell.active > 0.5f;
            if (!active && !cell.written) continue;
            const QRectF place = cellRect(step, row);
            if (active) {
                painter.setAntialiasing(false);
                const double bar = std::clamp(place.height() / 6, 1.5, 3.0);
                painter.fillRect(QRectF(place.left() + 1, place.bottom() - bar, place.width() - 1, bar), active_);
            }
            if (cell.written) {
                painter.setAntialiasing(true);
                const double radius = std::clamp(std::min(place.width(), place.height()) / 4, 1.6, 4.5);
                painter.setPen(QPen(halo_, 1.2));
                painter.setBrush(mark_);
                painter.drawEllipse(place.center() + QPointF(0.5, 0.5), radius, radius);
            }
        }
    }
    painter.setBrush(Qt::NoBrush);
}

void DenoisePlottable::draw(QCPPainter* painter) {
    const QRect area = mKeyAxis->axisRect()->rect();
    const double scale = deviceScale(*painter);
    const QSize size = deviceSize(area, scale);
    stepsPerPixel_ = mKeyAxis->range().size() / size.width();
    rowsPerPixel_ = mValueAxis->range().size() / size.height();
    marksVisible_ = std::max(stepsPerPixel_, rowsPerPixel_) * scale * kMarkFrom <= 1;
    drawDeviceImage(*painter, area, render(mKeyAxis->range(), mValueAxis->range(), size, scale), scale);
    drawBlocks(*painter);
    if (marksVisible_) drawMarks(*painter);
}

} // namespace kvscope::ui
