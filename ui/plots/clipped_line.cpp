#include "ui/plots/clipped_line.h"

#include <algorithm>

namespace kvscope::ui {

namespace {

/// Finds the part of the segment from a to b that lies within `area` (method of Liang and Barsky). `from` and `to` are
/// its ends as shares of the way from a to b. @return false if no part lies within
bool within(const QRectF& area, QPointF a, QPointF b, double& from, double& to) {
    const QPointF way = b - a;
    const auto cut = [&](double direction, double room) { // direction * share <= room
        if (direction == 0) return room >= 0;
        const double share = room / direction;
        if (direction < 0)
            from = std::max(from, share);
        else
            to = std::min(to, share);
        return from <= to;
    };
    from = 0;
    to = 1;
    return cut(-way.x(), a.x() - area.left()) && cut(way.x(), area.right() - a.x()) &&
           cut(-way.y(), a.y() - area.top()) && cut(way.y(), area.bottom() - a.y());
}

} // namespace

std::vector<QPolygonF> stretchesWithin(const QRectF& area, const QPolygonF& line) {
    if (line.size() == 1) return area.contains(line.front()) ? std::vector{line} : std::vector<QPolygonF>{};
    std::vector<QPolygonF> stretches;
    bool open = false; // the next segment may continue the last stretch
    for (qsizetype i = 0; i + 1 < line.size(); ++i) {
        double from = 0, to = 1;
        const bool seen = within(area, line[i], line[i + 1], from, to);
        if (seen) {
            const QPointF way = line[i + 1] - line[i];
            if (!open || from > 0) stretches.push_back({line[i] + way * from});
            stretches.back() << line[i] + way * to;
        }
        open = seen && to == 1;
    }
    return stretches;
}

} // namespace kvscope::ui
