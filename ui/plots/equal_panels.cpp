#include "ui/plots/equal_panels.h"

#include <qcustomplot.h>

#include <algorithm>

namespace kvscope::ui {

namespace {

int rowOf(QCPLayoutGrid& grid, const QCPAxisRect* panel) {
    for (int row = 0; row < grid.rowCount(); ++row)
        if (grid.hasElement(row, 0) && grid.element(row, 0) == panel) return row;
    return -1;
}

} // namespace

void keepEquallyHigh(QCustomPlot& plot, const QList<QCPAxisRect*>& panels) {
    QObject::connect(&plot, &QCustomPlot::afterLayout, &plot, [&plot, panels] {
        if (panels.isEmpty()) return;
        int all = 0, around = 0, least = QWIDGETSIZE_MAX, most = 0;
        for (const QCPAxisRect* panel : panels) {
            const int inner = panel->rect().height(), outer = panel->outerRect().height();
            all += outer, around += outer - inner;
            least = std::min(least, inner), most = std::max(most, inner);
        }
        const int each = (all - around) / int(panels.size());
        if (most - least <= 2 || each <= 0) return;
        for (QCPAxisRect* panel : panels) {
            const int row = rowOf(*plot.plotLayout(), panel);
            if (row < 0) continue;
            plot.plotLayout()->setRowStretchFactor(row, each + panel->outerRect().height() - panel->rect().height());
        }
        for (const auto phase :
             {QCPLayoutElement::upPreparation, QCPLayoutElement::upMargins, QCPLayoutElement::upLayout})
            plot.plotLayout()->update(phase);
    });
}

} // namespace kvscope::ui
