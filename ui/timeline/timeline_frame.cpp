// The parts of a timeline's picture around and above the spans: labels, map, ruler, marks and arrows.
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_curves.h"
#include "ui/timeline/timeline_painter.h"

#include <QFontMetricsF>
#include <QPainter>
#include <QPainterPath>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvscope::ui {

QRect beyondRect(const TimelineScene& scene, const TimelineAreas& areas, const QFont& font, bool left) {
    const QString text = beyondText(scene, left);
    if (text.isEmpty()) return {};
    const QFontMetrics metrics(font);
    const int width = metrics.horizontalAdvance(text) + 16;
    if (width > areas.ruler.width() / 2) return {};
    return {left ? areas.ruler.left() + 2 : areas.ruler.right() - width - 1, areas.ruler.top() + 2, width,
            areas.ruler.height() - 5};
}

void TimelinePainter::drawGutter(QPainter& painter, const TimelineScene& scene) {
    const QRect& gutter = areas_.gutter;
    painter.save();
    painter.setClipRect(gutter);
    painter.fillRect(gutter, theme_->raised);
    const QFontMetricsF metrics(font_);
    const TimelineData& data = *scene.data;
    for (std::size_t i = 0; i < scene.layout.rows.size(); ++i) {
        const TimelineRow& row = scene.layout.rows[i];
        const QRectF where(gutter.left() + 8, gutter.top() + row.y - scene.scroll, gutter.width() - 16, row.height);
        if (where.bottom() < gutter.top() || where.top() > gutter.bottom() || !row.firstOfTrack) continue;
        if (row.curve >= 0) {
            const double when = scene.hoverNs      ? *scene.hoverNs
                                : scene.cursorStep ? scene.cursorStep->from
                                                   : (scene.window.from + scene.window.to) / 2;
            const double block = 2 * metrics.height() + 1;
            const QRectF first(where.left(), where.top() + std::clamp((where.height() - block) / 2, 0.0, 12.0),
                               where.width(), metrics.height());
            const QRectF second = first.translated(0, metrics.height() + 1);
            const QString value = curveText(data, row.curve, curveAt(data, row.curve, when));
            const QString most =
                QStringLiteral("max %1").arg(curveText(data, row.curve, curveLargest(data, row.curve)));
            painter.setPen(theme_->text);
            painter.drawText(first, Qt::AlignLeft,
                             metrics.elidedText(curveTitle(data, row.curve), Qt::ElideRight, first.width()));
            painter.setPen(QColor::fromRgb(curveColour(data, row.curve, *theme_))
                               .darker(theme_->id == QLatin1String("light") ? 125 : 100));
            painter.drawText(second, Qt::AlignLeft, value);
            painter.setPen(theme_->mutedText);
            const double room = second.width() - metrics.horizontalAdvance(value) - 8;
            if (room > metrics.horizontalAdvance(QStringLiteral("max 1")))
                painter.drawText(second, Qt::AlignRight, metrics.elidedText(most, Qt::ElideRight, room));
            continue;
        }
        const bool folds = i + 1 < scene.layout.rows.size() && scene.layout.rows[i + 1].track == row.track;
        painter.setPen(theme_->text);
        QString busy = busyShare_[i] < 0 ? QString() : formatValue(Unit::Percent, busyShare_[i] * 100);
        double room = where.width() - metrics.horizontalAdvance(busy) - 8;
        const QString fold = row.folded ? QStringLiteral("▸ ") : folds ? QStringLiteral("▾ ") : QString();
        QString track = fold + trackTitle(data, row);
        if (metrics.horizontalAdvance(track) > room) {
            const QString brief = fold + shortTrackTitle(data, row);
            // Whose clock a transfer stands on matters more than how busy the link is.
            if (brief != track && metrics.horizontalAdvance(brief) > room) busy.clear(), room = where.width();
            track = brief;
        }
        painter.drawText(where, Qt::AlignLeft | Qt::AlignVCenter, metrics.elidedText(track, Qt::ElideRight, room));
        painter.setPen(theme_->mutedText);
        painter.drawText(where, Qt::AlignRight | Qt::AlignVCenter, busy);
    }
    painter.setPen(theme_->border);
    painter.drawLine(gutter.topRight(), gutter.bottomRight());
    painter.restore();
}

void TimelinePainter::drawMinimap(QPainter& painter, const TimelineScene& scene) {
    const QRect& where = areas_.minimap;
    const QSize pixels = (QSizeF(where.size()) * ratio_).toSize();
    const TimeRange whole = mapOf(scene);
    if (minimap_.size() != pixels || minimapTable_ != scene.data->table || minimapRevision_ != scene.revision ||
        minimapTheme_ != theme_->id || !(minimapOf_ == whole)) {
        minimapOf_ = whole;
        minimapTable_ = scene.data->table;
        minimapRevision_ = scene.revision;
        minimapTheme_ = theme_->id;
        minimap_ = QImage(pixels, QImage::Format_RGB32);
        minimap_.setDevicePixelRatio(ratio_);
        minimap_.fill(theme_->raised.rgb());
        // The deepest lane of each of the first tracks: what the run did, one line each.
        std::vector<int> lanes;
        for (const TimelineRow& row : scene.layout.rows) {
            if (row.lane < 0) continue;
            if (row.firstOfTrack || lanes.empty())
                lanes.push_back(row.lane);
            else if (scene.data->index.lane(row.lane).row == 0)
                lanes.back() = row.lane;
        }
        if (lanes.size() > 4) lanes.resize(4);
        Numbered<QRgb> line;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            line.assign(pixels.width(), theme_->raised.rgb());
            fillLine(scene, lanes[i], whole, line, nullptr);
            const int top = int(double(pixels.height()) * double(i) / double(lanes.size())) + int(ratio_);
            const int bottom = int(double(pixels.height()) * double(i + 1) / double(lanes.size())) - int(ratio_);
            for (int y = top; y < bottom; ++y)
                std::memcpy(minimap_.scanLine(y), line.data(), line.size() * sizeof(QRgb));
        }
    }
    painter.drawImage(where.topLeft(), minimap_);
    const auto xOf = [&](double ns) {
        return std::clamp(where.left() + (ns - whole.from) / whole.size() * where.width(), double(where.left()),
                          double(where.right() + 1));
    };
    QColor veil = theme_->plotBackground;
    veil.setAlpha(150);
    const double left = xOf(scene.window.from), right = std::max(xOf(scene.window.to), left + 2);
    painter.fillRect(QRectF(where.left(), where.top(), left - where.left(), where.height()), veil);
    painter.fillRect(QRectF(right, where.top(), where.right() + 1 - right, where.height()), veil);
    painter.setPen(QPen(theme_->accent, 1));
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(QRectF(left, where.top() + 0.5, right - left - 1, where.height() - 1));
    if (scene.cursorStep) {
        painter.setPen(QPen(theme_->cursor, 1));
        const double x = xOf(scene.cursorStep->from);
        painter.drawLine(QPointF(x, where.top()), QPointF(x, where.bottom()));
    }
    painter.setPen(theme_->mutedText);
    painter.drawText(QRect(8, where.top(), areas_.gutter.width() - 16, where.height()),
                     Qt::AlignLeft | Qt::AlignVCenter,
                     whole == scene.data->whole() ? QStringLiteral("whole run") : QStringLiteral("without outliers"));
}

void TimelinePainter::drawRuler(QPainter& painter, const TimelineScene& scene, const std::vector<TimeTick>& ticks) {
    const QRect& where = areas_.ruler;
    painter.save();
    painter.setPen(theme_->mutedText);
    painter.drawText(QRect(8, where.top(), areas_.gutter.width() - 16, where.height()),
                     Qt::AlignLeft | Qt::AlignVCenter,
                     QStringLiteral("shown: %1").arg(formatTime(scene.window.size(), scene.window.size() / 1000)));
    painter.setClipRect(where);
    painter.setPen(theme_->plotAxis);
    painter.drawLine(where.bottomLeft(), where.bottomRight());
    const QFontMetricsF metrics(font_);
    const QRectF before = beyondRect(scene, areas_, font_, true), after = beyondRect(scene, areas_, font_, false);
    double labelled = before.right(); // up to here the ruler has text
    for (const TimeTick& tick : ticks) {
        const double x = areas_.xOf(tick.ns, scene.window);
        painter.setPen(theme_->plotAxis);
        painter.drawLine(QPointF(x, where.bottom() - 5), QPointF(x, where.bottom()));
        const double end = x + 4 + metrics.horizontalAdvance(tick.label);
        if (x < before.right() || (!after.isEmpty() && end > after.left())) continue; // a sign lies there
        painter.setPen(theme_->mutedText);
        // A label that would be cut at the edge stands before its tick, unless the label before it ends there.
        const bool cut = end > where.right();
        const double left = cut ? x - 4 - (end - x - 4) : x + 4;
        if (left < labelled) continue;
        painter.drawText(QPointF(left, where.bottom() - 6), tick.label);
        labelled = end + 4;
    }
    drawBeyond(painter, scene);
    for (const Note& note : scene.data->notes) { // flags
        const double x = areas_.xOf(double(note.startNs), scene.window);
        if (x < where.left() - 12 || x > where.right()) continue;
        painter.setPen(Qt::NoPen);
        painter.setBrush(theme_->warning);
        const double y = where.top() + 1;
        painter.drawPolygon(QPolygonF{{x, y}, {x + 9, y + 3.5}, {x, y + 7}});
        painter.setPen(QPen(theme_->warning, 1));
        painter.drawLine(QPointF(x, y), QPointF(x, where.bottom()));
    }
    painter.restore();
}

/// Draws signs that lead to what lies outside the opening window.
void TimelinePainter::drawBeyond(QPainter& painter, const TimelineScene& scene) {
    for (const bool left : {true, false}) {
        const QRect where = beyondRect(scene, areas_, font_, left);
        if (where.isEmpty()) continue;
        painter.setPen(QPen(theme_->border, 1));
        painter.setBrush(theme_->raised);
        painter.setRenderHint(QPainter::Antialiasing);
        painter.drawRoundedRect(QRectF(where).adjusted(0.5, 0.5, -0.5, -0.5), 4, 4);
        painter.setRenderHint(QPainter::Antialiasing, false);
        painter.setPen(theme_->accent);
        painter.drawText(where, Qt::AlignCenter, beyondText(scene, left));
    }
}

QRectF TimelinePainter::rectOf(const TimelineScene& scene, SpanRef ref) const {
    const TimelineRow* row = scene.layout.rowOf(ref.lane);
    return row ? rectIn(scene, *row, ref) : QRectF();
}

QRectF TimelinePainter::rectIn(const TimelineScene& scene, const TimelineRow& row, SpanRef ref) const {
    const TimelineSpan span = scene.data->index.at(ref);
    const double left = areas_.xOf(double(span.startNs), scene.window),
                 right = areas_.xOf(double(span.endNs()), scene.window);
    return {left, double(areas_.body.top() + row.y - scene.scroll), std::max(right - left, 1.0), row.height - 2.0};
}

void TimelinePainter::drawMarks(QPainter& painter, const TimelineScene& scene) {
    const QRect& body = areas_.body;
    const auto band = [&](const TimeRange& range, QColor colour, int alpha, bool right) {
        const double x0 = std::clamp(areas_.xOf(range.from, scene.window), body.left() - 2.0, body.right() + 2.0);
        const double x1 = std::clamp(areas_.xOf(range.to, scene.window), body.left() - 2.0, body.right() + 2.0);
        painter.setPen(QPen(colour, 1));
        painter.drawLine(QPointF(x0, body.top()), QPointF(x0, body.bottom()));
        if (right) painter.drawLine(QPointF(x1, body.top()), QPointF(x1, body.bottom()));
        colour.setAlpha(alpha);
        painter.fillRect(QRectF(x0, body.top(), std::max(1.0, x1 - x0), body.height()), colour);
    };
    if (scene.cursorStep) band(*scene.cursorStep, theme_->cursor, 14, false);
    for (const Note& note : scene.data->notes)
        if (note.durationNs > 0)
            band({double(note.startNs), double(note.startNs + note.durationNs)}, theme_->warning, 24, true);
    if (scene.range) {
        band(*scene.range, theme_->accent, 34, true);
        const double middle =
            (areas_.xOf(scene.range->from, scene.window) + areas_.xOf(scene.range->to, scene.window)) / 2;
        const QString text = formatTime(scene.range->size(), scene.range->size() / 1000);
        const QFontMetricsF metrics(font_);
        QRectF box(0, body.top() + 3, metrics.horizontalAdvance(text) + 12, metrics.height() + 4);
        box.moveLeft(std::clamp(middle - box.width() / 2, double(body.left()),
                                std::max(double(body.left()), body.right() - box.width())));
        painter.setPen(Qt::NoPen);
        painter.setBrush(theme_->accent);
        painter.drawRoundedRect(box, 3, 3);
        painter.setPen(QColor::fromRgb(textOn(theme_->accent.rgb())));
        painter.drawText(box, Qt::AlignCenter, text);
    }
    if (scene.selected) {
        const QRectF where = rectOf(scene, *scene.selected);
        if (!where.isEmpty()) {
            // Cut to the body first: a zoomed span may be millions of pixels wide.
            const QRectF shown = where.adjusted(-1, -1, 1, 0) & QRectF(body).adjusted(-4, -4, 4, 4);
            painter.setBrush(Qt::NoBrush);
            painter.setPen(QPen(theme_->plotBackground, 4));
            painter.drawRect(shown);
            painter.setPen(QPen(theme_->cursor, 2));
            painter.drawRect(shown);
        }
    }
}

/// Where an arrow meets a span: in its row or, where that is folded away, in the row that stands for it.
std::optional<QRectF> TimelinePainter::arrowRect(const TimelineScene& scene, SpanRef ref) const {
    if (scene.layout.rowOf(ref.lane)) return rectOf(scene, ref);
    const int track = scene.data->index.lane(ref.lane).track;
    for (const TimelineRow& row : scene.layout.rows)
        if (row.track == track) return rectIn(scene, row, ref);
    return std::nullopt; // the track is hidden
}

void TimelinePainter::drawFlows(QPainter& painter, const TimelineScene& scene) {
    painter.setRenderHint(QPainter::Antialiasing);
    const QRectF body = QRectF(areas_.body).adjusted(2, 2, -2, -2);
    for (const SpanFlow& flow : scene.flows) {
        const auto from = arrowRect(scene, flow.from), to = arrowRect(scene, flow.to);
        if (!from || !to) continue;
        const bool launch = flow.kind == SpanFlow::Kind::Launch;
        // Launches leave where the call or stage begins, transfers arrive where they end.
        const ArrowEnds ends = arrowWithin(body, {launch ? from->left() : from->right(), from->center().y()},
                                           {to->left(), to->center().y()});
        if (!ends.seen) continue;
        const QPointF a = ends.from, b = ends.to;
        const double bend = std::clamp(std::abs(b.x() - a.x()) / 2, 24.0, 160.0);
        QPainterPath path(a);
        path.cubicTo(a + QPointF(bend, 0), b - QPointF(bend, 0), b);
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(theme_->plotBackground, 4));
        painter.drawPath(path);
        const QColor colour = launch ? theme_->accent : theme_->danger;
        painter.setPen(QPen(colour, 1.6));
        painter.drawPath(path);
        painter.setPen(Qt::NoPen);
        painter.setBrush(colour);
        painter.drawPolygon(QPolygonF{b, b + QPointF(-8, -4.5), b + QPointF(-8, 4.5)});
        if (!ends.fromOutside) painter.drawEllipse(a, 2.5, 2.5);
    }
    painter.setRenderHint(QPainter::Antialiasing, false);
}

ArrowEnds arrowWithin(const QRectF& body, QPointF from, QPointF to) {
    ArrowEnds ends;
    const auto outside = [&](const QPointF& at) { return !body.contains(at); };
    ends.fromOutside = outside(from);
    ends.toOutside = outside(to);
    // Both beyond the same edge: nothing of the arrow lies between them.
    ends.seen =
        !((from.x() < body.left() && to.x() < body.left()) || (from.x() > body.right() && to.x() > body.right()) ||
          (from.y() < body.top() && to.y() < body.top()) || (from.y() > body.bottom() && to.y() > body.bottom()));
    const auto inside = [&](const QPointF& at) {
        return QPointF(std::clamp(at.x(), body.left(), body.right()), std::clamp(at.y(), body.top(), body.bottom()));
    };
    ends.from = inside(from);
    ends.to = inside(to);
    return ends;
}

} // namespace kvscope::ui
