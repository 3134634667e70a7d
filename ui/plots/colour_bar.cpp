#include "ui/plots/colour_bar.h"

#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"

#include <QPointer>

namespace kvscope::ui {

QCPColorScale* addColourBar(PlotCanvas& plot, int row, int column, QCPAxisRect* panel) {
    auto* bar = new QCPColorScale(&plot);
    bar->setType(QCPAxis::atRight);
    bar->setBarWidth(14);
    bar->setRangeDrag(false);
    bar->setRangeZoom(false);
    plot.plotLayout()->addElement(row, column, bar);
    if (!panel->marginGroup(QCP::msTop)) panel->setMarginGroup(QCP::msTop | QCP::msBottom, new QCPMarginGroup(&plot));
    bar->setMarginGroup(QCP::msTop | QCP::msBottom, panel->marginGroup(QCP::msTop));
    // The group makes the margins equal that the two elements have inside the row. The colours themselves are an axis
    // rectangle inside the bar with margins of its own, which QCPColorScale::update gives the bar's inner rectangle:
    // the group does not know it.
    QObject::connect(&plot, &QCustomPlot::afterLayout, bar, [bar, beside = QPointer<QCPAxisRect>(panel)] {
        QCPAxisRect& colours = *bar->axis()->axisRect();
        const QRect wide = colours.rect();
        if (beside && (wide.top() != beside->top() || wide.bottom() != beside->bottom()))
            colours.setOuterRect(
                QRect(wide.left(), beside->top(), wide.width(), beside->height()).marginsAdded(colours.margins()));
    });
    return bar;
}

void fillColourBar(QCPColorScale& bar, QRgb (*colour)(double share)) {
    QCPColorGradient gradient;
    gradient.clearColorStops();
    for (int i = 0; i <= 32; ++i) gradient.setColorStopAt(i / 32.0, QColor(colour(i / 32.0)));
    bar.setGradient(gradient);
}

void themeColourBar(QCPColorScale& bar, const QCPAxisRect& panel, const Theme& theme) {
    QCPAxis& axis = *bar.axis();
    axis.setBasePen(QPen(theme.plotAxis, 1));
    axis.setTickPen(QPen(theme.plotAxis, 1));
    axis.setSubTickPen(Qt::NoPen);
    axis.setTickLabelColor(theme.mutedText);
    axis.setLabelColor(theme.text);
    axis.setLabelFont(panel.axis(QCPAxis::atLeft)->labelFont());
    axis.setTickLabelFont(panel.axis(QCPAxis::atLeft)->tickLabelFont());
    for (QCPAxis* each : axis.axisRect()->axes()) {
        each->setBasePen(QPen(theme.border, 1));
        if (each != &axis) each->setTickPen(Qt::NoPen);
    }
}

} // namespace kvscope::ui
