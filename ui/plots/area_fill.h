// The area between a curve and a line below it.
#pragma once

class QCPPainter;
class QPolygonF;

namespace kvscope::ui {

/// Fills with the painter's brush from a line, whose points go from left to right, down to y = base. In pieces: the
/// time that Qt takes for a polygon grows with the square of its ups and downs, to a tenth of a second for a noisy
/// curve.
void fillBelow(QCPPainter& painter, const QPolygonF& line, double base);

} // namespace kvscope::ui
