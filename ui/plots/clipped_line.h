// The part of a line that lies in a rectangle: for SVG, whose generator takes no clip.
#pragma once

#include <QPolygonF>
#include <QRectF>

#include <vector>

namespace kvscope::ui {

/// The stretches of a line that lie within `area`, in order; each has at least two points, or is a lone one.
std::vector<QPolygonF> stretchesWithin(const QRectF& area, const QPolygonF& line);

} // namespace kvscope::ui
