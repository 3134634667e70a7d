// Cuts a line to a rectangle. Drawing to SVG needs this, because Qt's SVG generator ignores clipping.
#pragma once

#include <QPolygonF>
#include <QRectF>

#include <vector>

namespace kvscope::ui {

/// The parts of `line` within `area`, in order. Each has at least two points, except if `line` itself is one point.
std::vector<QPolygonF> stretchesWithin(const QRectF& area, const QPolygonF& line);

} // namespace kvscope::ui
