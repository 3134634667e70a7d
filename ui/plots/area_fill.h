// Fills the area between a curve and a level line.
#pragma once

class QCPPainter;
class QPolygonF;

namespace kvscope::ui {

/// Fills the area from `line`, whose points go from left to right, down to y = `base` with the painter's brush. It
/// draws short pieces, because the time that Qt takes for a polygon grows with the square of its ups and downs: a noisy
/// curve in one piece takes a tenth of a second.
void fillBelow(QCPPainter& painter, const QPolygonF& line, double base);

} // namespace kvscope::ui
