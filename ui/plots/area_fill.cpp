#include "ui/plots/area_fill.h"

#include <qcustomplot.h>

#include <algorithm>

namespace kvscope::ui {

void fillBelow(QCPPainter& painter, const QPolygonF& line, double base) {
    constexpr qsizetype kPiece = 8; // points
    // A vector file gets one piece: neighbouring pieces would show a seam there, and its time does not matter.
    const qsizetype piece = painter.modes().testFlag(QCPPainter::pmVectorized) ? line.size() : kPiece;
    const bool smooth = painter.antialiasing();
    painter.setAntialiasing(false); // smooth edges would be filled twice where pieces meet
    painter.setPen(Qt::NoPen);
    for (qsizetype first = 0; first + 1 < line.size(); first += piece) {
        QPolygonF body = line.mid(first, piece + 1);
        body << QPointF(body.last().x(), base) << QPointF(body.first().x(), base);
        painter.drawPolygon(body);
    }
    painter.setAntialiasing(smooth);
}

} // namespace kvscope::ui
