#include "ui/plots/roofline_plottable.h"

#include "ui/look/theme.h"

#include <QApplication>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kPen = 2.5, kPointRadius = 4.5, kTick = 9;
constexpr int kLeader = 14, kNameGap = 4;
} // namespace

RooflinePlottable::RooflinePlottable(QCPAxis* x, QCPAxis* y) : QCPAbstractPlottable(x, y) {
    applyTheme(Theme::current());
}

void RooflinePlottable::setLines(std::vector<RooflineLine> lines) { lines_ = std::move(lines); }

void RooflinePlottable::applyTheme(const Theme& theme) {
    resources_.assign(theme.resource.begin(), theme.resource.end());
    text_ = theme.text;
    muted_ = theme.mutedText;
    background_ = theme.plotBackground;
    font_ = QApplication::font();
    font_.setPointSizeF(std::max(7.5, font_.pointSizeF() - 1));
}

int RooflinePlottable::nameWidth() const {
    const QFontMetrics metrics(font_);
    int widest = 0;
    for (const RooflineLine& line : lines_) widest = std::max(widest, metrics.horizontalAdvance(line.name));
    return widest > 0 ? widest + kLeader + 2 * kNameGap : 0;
}

QCPRange RooflinePlottable::getKeyRange(bool& found, QCP::SignDomain) const {
    found = !lines_.empty() && !lines_.front().points.isEmpty();
    return found ? QCPRange(lines_.front().points.first().x(), lines_.front().points.last().x()) : QCPRange();
}

QCPRange RooflinePlottable::getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const {
    QCPRange range;
    found = false;
    const auto take = [&](double y) {
        if (std::isnan(y)) return;
        range = found ? QCPRange(std::min(range.lower, y), std::max(range.upper, y)) : QCPRange(y, y);
        found = true;
    };
    for (const RooflineLine& line : lines_)
        for (const QPointF& point : line.points) take(point.y());
    for (const RooflinePoint& point : points_) take(point.measured), take(point.predicted);
    return range;
}

QRect RooflinePlottable::clipRect() const { return parentPlot()->viewport(); }

QPointF RooflinePlottable::pixel(QPointF at) const {
    return {mKeyAxis->coordToPixel(at.x()), mValueAxis->coordToPixel(at.y())};
}

void RooflinePlottable::draw(QCPPainter* painter) {
    const QRect area = mKeyAxis->axisRect()->rect();
    painter->save();
    painter->setClipRect(area, Qt::IntersectClip);
    painter->setAntialiasing(true);
    painter->setFont(font_);
    if (guide_) drawGuide(*painter, area);
    for (const RooflineLine& line : lines_) drawLine(*painter, line);
    drawPoints(*painter, area);
    painter->restore();
    painter->setFont(font_);
    painter->setAntialiasing(true);
    drawNames(*painter, area);
}

/// Draws each stretch of a curve that has one limiting resource as one polyline, so that its dashes are continuous.
void RooflinePlottable::drawLine(QCPPainter& painter, const RooflineLine& line) const {
    QPolygonF stretch;
    int resource = -1;
    const auto flush = [&] {
        if (stretch.size() > 1) {
            QPen pen(resources_[resource], kPen, line.style, Qt::FlatCap, Qt::RoundJoin);
            painter.setPen(pen);
            painter.setBrush(Qt::NoBrush);
            painter.drawPolyline(stretch);
        }
        stretch.clear();
    };
    for (qsizetype i = 0; i < line.points.size(); ++i) {
        const QPointF& point = line.points[i];
        if (std::isnan(point.y())) {
            flush();
            continue;
        }
        const QPointF at = pixel(point);
        if (!stretch.isEmpty() && line.resource[std::size_t(i)] != resource) {
            stretch << at; // the stretch ends where the next begins
            flush();
        }
        resource = line.resource[std::size_t(i)];
        stretch << at;
    }
    flush();
}

/// Draws the name of each curve right of the plot, at the height where the curve ends there, and moves names apart that
/// would overlap.
void RooflinePlottable::drawNames(QCPPainter& painter, const QRect& area) const {
    struct Name {
        const RooflineLine* line;
        double wanted, y;
    };
    std::vector<Name> names;
    const double right = mKeyAxis->range().upper;
    for (const RooflineLine& line : lines_) {
        const QPointF* last = nullptr;
        for (const QPointF& point : line.points)
            if (point.x() <= right + 1e-9 && !std::isnan(point.y())) last = &point;
        if (last == nullptr) continue;
        const double y = mValueAxis->coordToPixel(last->y());
        if (y < area.top() - 1 || y > area.bottom() + 1) continue; // the curve leaves at the top or the bottom
        names.push_back({&line, y, y});
    }
    std::stable_sort(names.begin(), names.end(), [](const Name& a, const Name& b) { return a.wanted < b.wanted; });
    const QFontMetrics metrics(font_);
    const double height = metrics.height();
    double lowest = area.top();
    for (Name& name : names) {
        name.y = std::max(name.y, lowest + height / 2);
        lowest = name.y + height / 2;
    }
    double highest = area.bottom() + height / 2; // moves names up again that would lie below the plot
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
        name->y = std::min(name->y, highest - height / 2);
        highest = name->y - height / 2;
    }
    const double edge = area.right() + 1;
    for (const Name& name : names) {
        painter.setPen(QPen(muted_, 1));
        painter.drawLine(QPointF(edge + 2, name.wanted), QPointF(edge + kLeader, name.y));
        painter.setPen(text_);
        painter.drawText(QRectF(edge + kLeader + kNameGap, name.y - height / 2, 400, height),
                         Qt::AlignLeft | Qt::AlignVCenter | Qt::TextDontClip, name.line->name);
    }
}

void RooflinePlottable::drawGuide(QCPPainter& painter, const QRect& area) const {
    const double x = mKeyAxis->coordToPixel(guide_->x);
    painter.setPen(QPen(muted_, 1, Qt::DashLine));
    painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()));
    const QFontMetrics metrics(font_);
    const int width = metrics.horizontalAdvance(guide_->text);
    const bool left = x + 6 + width > area.right();
    painter.setPen(muted_);
    painter.drawText(QRectF(left ? x - 6 - width : x + 6, area.top() + 4, width + 4, metrics.height()),
                     Qt::AlignLeft | Qt::AlignVCenter | Qt::TextDontClip, guide_->text);
}

void RooflinePlottable::drawPoints(QCPPainter& painter, const QRect& area) const {
    const QFontMetrics metrics(font_);
    std::vector<QRectF> taken; // places of dots and labels, which no further label may cover
    for (const RooflinePoint& point : points_) {
        const QPointF at = pixel({point.x, point.measured});
        taken.emplace_back(at - QPointF(kPointRadius, kPointRadius), QSizeF(2 * kPointRadius, 2 * kPointRadius));
        if (!std::isnan(point.predicted)) { // a dotted line to what the run's own conditions allow
            const QPointF top = pixel({point.x, point.predicted});
            painter.setPen(QPen(point.colour, 1, Qt::DotLine));
            painter.drawLine(at, top);
            painter.setPen(QPen(point.colour, 2));
            painter.drawLine(top - QPointF(kTick / 2, 0), top + QPointF(kTick / 2, 0));
        }
        painter.setPen(Qt::NoPen); // a ring of background sets the dot off from curves of similar colour
        painter.setBrush(background_);
        painter.drawEllipse(at, kPointRadius + 2.5, kPointRadius + 2.5);
        painter.setPen(QPen(point.colour, 2));
        painter.setBrush(point.filled ? point.colour : background_);
        painter.drawEllipse(at, kPointRadius, kPointRadius);
    }
    painter.setBrush(Qt::NoBrush);
    for (const RooflinePoint& point : points_) {
        const QPointF at = pixel({point.x, point.measured});
        if (!QRectF(area).contains(at)) continue;
        const double width = metrics.horizontalAdvance(point.label) + 4, height = metrics.height();
        const QRectF beside(at.x() + kPointRadius + 5, at.y() - height / 2, width, height);
        const auto free = [&](const QRectF& place) {
            return QRectF(area).contains(place) && std::none_of(taken.begin(), taken.end(), [&](const QRectF& other) {
                       return other.intersects(place);
                   });
        };
        // Tries places right and left of the dot, each time a little further up and down.
        QRectF place = beside;
        for (int i = 0; i < 24 && !free(place); ++i) {
            place = beside.translated(0, (i / 2 % 2 == 0 ? -1 : 1) * (i / 4) * (height / 2 + 1));
            if (i % 2 == 1) place.moveRight(at.x() - kPointRadius - 5);
        }
        if (!free(place)) continue; // no room for the label, which the tooltip shows too
        taken.push_back(place);
        QColor behind = background_;
        behind.setAlpha(200); // keeps the label readable over a curve
        painter.fillRect(place, behind);
        painter.setPen(text_);
        painter.drawText(place, Qt::AlignLeft | Qt::AlignVCenter | Qt::TextDontClip, point.label);
    }
}

} // namespace kvscope::ui
