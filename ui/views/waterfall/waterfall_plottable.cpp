#include "ui/views/waterfall/waterfall_plottable.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kBarShare = 0.72; // of a row's height
constexpr double kValueFrom = 9;   // logical pixels; lower rows have no value beside their bar
constexpr int kValueDistance = 6;  // logical pixels from the bar to its value
} // namespace

double WaterfallPlottable::Row::end() const {
    double sum = from;
    for (const auto& part : parts) sum += part.first;
    return sum;
}

WaterfallPlottable::WaterfallPlottable(QCPAxis* time, QCPAxis* rows) : QCPAbstractPlottable(time, rows) {
    setAntialiased(false);
}

QCPRange WaterfallPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !rows_.empty();
    QCPRange range(0, 0);
    for (const Row& row : rows_) range.expand(QCPRange(std::min(row.from, row.end()), std::max(row.from, row.end())));
    return range;
}

QCPRange WaterfallPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !rows_.empty();
    return {-0.5, std::max(0.5, double(rows_.size()) - 0.5)};
}

void WaterfallPlottable::draw(QCPPainter* painter) {
    const QCPRange rows = valueAxis()->range();
    const double height = std::abs(valueAxis()->coordToPixel(1) - valueAxis()->coordToPixel(0));
    const double bar = std::max(1.0, height * kBarShare);
    const QRect area = keyAxis()->axisRect()->rect();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const Row& row = rows_[i];
        if (double(i) + 0.5 < rows.lower || double(i) - 0.5 > rows.upper) continue;
        const double middle = valueAxis()->coordToPixel(double(i)), top = middle - bar / 2;
        double at = row.from, left = keyAxis()->coordToPixel(row.from), right = left;
        for (const auto& [length, colour] : row.parts) {
            const double a = keyAxis()->coordToPixel(at), b = keyAxis()->coordToPixel(at + length);
            const QRectF piece(std::min(a, b), top, std::max(std::abs(b - a), 1.0), bar);
            if (row.hatched || length < 0) { // what is gained, or not known, is not solid
                painter->setPen(QPen(colour, 1));
                painter->setBrush(QBrush(colour, Qt::BDiagPattern));
                painter->drawRect(piece);
            } else {
                painter->fillRect(piece, colour);
            }
            at += length;
            left = std::min({left, a, b}), right = std::max({right, a, b});
        }
        if (i + 1 < rows_.size()) { // to where the next bar begins
            const double x = keyAxis()->coordToPixel(at);
            painter->setPen(QPen(line_, 1));
            painter->drawLine(QPointF(x, top + bar), QPointF(x, middle + height - bar / 2));
        }
        if (row.value.isEmpty() || height < kValueFrom) continue;
        QFont font = keyAxis()->tickLabelFont();
        font.setBold(row.strong);
        painter->setFont(font);
        painter->setPen(text_);
        const double width = QFontMetricsF(font).horizontalAdvance(row.value);
        const bool fits = right + kValueDistance + width <= area.right();
        const double x = fits ? right + kValueDistance : left - kValueDistance - width;
        if (x < area.left()) continue; // the tooltip and the chosen row's text still say it
        painter->drawText(QRectF(x, middle - height, width + 2, 2 * height), Qt::AlignLeft | Qt::AlignVCenter,
                          row.value);
    }
}

} // namespace kvscope::ui
