#include "ui/views/serving/serving_strip.h"

#include "ui/frame/units.h"

#include <qcustomplot.h>

namespace kvscope::ui {

QCPGraph* ServingStrip::curveIn(QCPAxisRect& panel) {
    auto* graph = new QCPGraph(panel.axis(QCPAxis::atBottom), panel.axis(QCPAxis::atLeft));
    graph->setLineStyle(QCPGraph::lsStepLeft);
    return graph;
}

QString servingTime(double ns) { return formatValue(Unit::Nanoseconds, ns); }
QString servingBytes(double count) { return formatValue(Unit::Bytes, count); }
QString servingLimit(QString id) { return id.replace(QLatin1Char('_'), QLatin1Char(' ')); }

QColor faint(QColor colour, double opacity) {
    colour.setAlphaF(float(opacity));
    return colour;
}

} // namespace kvscope::ui
