#include "ui/plots/found_plottable.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr double kSquare = 7;       // logical pixels, at the left edge
constexpr double kSmallestCell = 7; // logical pixels of an outline, so that it is seen where cells are smaller
constexpr double kOutlineWidth = 2;

/// Begin and length of a cell on an axis, in logical pixels, with at least this length around the same centre.
std::pair<double, double> extentOf(const QCPAxis& axis, double at, double least) {
    const double a = axis.coordToPixel(at - 0.5), b = axis.coordToPixel(at + 0.5);
    const double length = std::max(std::abs(a - b), least);
    return {(a + b - length) / 2, length};
}

} // namespace

void FoundPlottable::setColours(const QColor& mark, const QColor& ground) {
    mark_ = mark;
    ground_ = ground;
}

void FoundPlottable::setMarks(int step, std::vector<Mark> marks) {
    step_ = step;
    marks_ = std::move(marks);
}

QCPRange FoundPlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !marks_.empty();
    return found ? QCPRange(step_ - 0.5, step_ + 0.5) : QCPRange();
}

QCPRange FoundPlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    found = !marks_.empty();
    return found ? QCPRange(marks_.front().block - 0.5, marks_.back().block + 0.5) : QCPRange();
}

void FoundPlottable::draw(QCPPainter* painter) {
    const QRectF area = keyAxis()->axisRect()->rect();
    const QPen pen(mark_, kOutlineWidth, Qt::SolidLine, Qt::SquareCap, Qt::MiterJoin);
    const auto [left, width] = extentOf(*keyAxis(), step_, kSmallestCell);
    for (const Mark& mark : marks_) {
        const auto [top, height] = extentOf(*valueAxis(), mark.block, kSmallestCell);
        if (top > area.bottom() || top + height < area.top()) continue;
        const bool selected = mark.head == BlockChoice::Head::Selected;
        const QRectF square(area.left() + 2, top + (height - kSquare) / 2, kSquare, kSquare);
        if (mark.head == BlockChoice::Head::ChoseNone) {
            painter->fillRect(QRectF(square.left(), square.center().y() - 1, kSquare, 2), mark_);
            continue;
        }
        painter->fillRect(square, selected ? mark_ : ground_);
        painter->setPen(pen);
        painter->setBrush(Qt::NoBrush);
        painter->drawRect(square);
        if (mark.head != BlockChoice::Head::Passed) continue;
        const double inset = kOutlineWidth / 2; // the outline stays inside of its cell
        painter->drawRect(QRectF(left + inset, top + inset, width - kOutlineWidth, height - kOutlineWidth));
    }
}

} // namespace kvscope::ui
