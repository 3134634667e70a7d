// Finds the row, the span or the note under a point of the timeline.
#include "ui/timeline/timeline_canvas.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kEdge = 4; // pixels on either side of the labels' edge that take hold of it
}

/// The row at this height, of its label as well.
const TimelineRow* TimelineCanvas::rowAt(QPointF where) const {
    const int top = areas().body.top();
    return where.y() < top ? nullptr : scene_.layout.rowAt(int(where.y()) - top + scene_.scroll);
}

bool TimelineCanvas::onGutterEdge(QPointF where) const {
    return std::abs(where.x() - areas().body.left()) <= kEdge && where.y() >= areas().body.top();
}

TimelinePlace TimelineCanvas::placeAt(QPoint where) const {
    const TimelineAreas all = areas();
    TimelinePlace place;
    place.ns = all.timeAt(std::clamp(where.x(), all.body.left(), all.body.right()), scene_.window);
    for (const Note& note : data_.notes) { // the note's flag, or its band on the ruler
        const double left = all.xOf(double(note.startNs), scene_.window),
                     right = std::max(left + 10, all.xOf(double(note.startNs + note.durationNs), scene_.window));
        if (all.ruler.contains(where) && where.x() >= left - 1 && where.x() <= right) {
            place.kind = TimelinePlace::Kind::Note;
            place.note = note.id;
            return place;
        }
    }
    if (all.ruler.contains(where) || all.minimap.contains(where)) {
        place.kind = TimelinePlace::Kind::Ruler;
        return place;
    }
    if (const TimelineRow* row = rowAt(where)) {
        place.row = *row;
        place.span = spanAt(where);
        place.kind = place.span                                      ? TimelinePlace::Kind::Span
                     : row->curve >= 0 || all.gutter.contains(where) ? TimelinePlace::Kind::Track
                                                                     : TimelinePlace::Kind::Empty;
    }
    return place;
}

std::optional<SpanRef> TimelineCanvas::spanAt(QPointF where) const {
    const TimelineAreas all = areas();
    if (!QRectF(all.body).contains(where)) return std::nullopt;
    const TimelineRow* row = rowAt(where);
    if (!row || row->lane < 0) return std::nullopt;
    const double ns = all.timeAt(where.x(), scene_.window);
    if (const auto exact = data_.index.find(row->lane, std::int64_t(std::floor(ns)))) return exact;
    // Beside a short one: the nearest within two pixels.
    const double reach = 2 * scene_.window.size() / all.body.width();
    std::optional<SpanRef> nearest;
    double best = reach;
    const std::uint32_t next = data_.index.lowerBound(row->lane, std::int64_t(ns));
    for (std::uint32_t i = next > 0 ? next - 1 : 0; i < std::min(next + 1, data_.index.lane(row->lane).spans); ++i) {
        const TimelineSpan span = data_.index.at({row->lane, i});
        const double away = std::max({0.0, double(span.startNs) - ns, ns - double(span.endNs())});
        if (away <= best) {
            best = away;
            nearest = SpanRef{row->lane, i};
        }
    }
    return nearest;
}

} // namespace kvscope::ui
