#include "ui/plots/equal_panels.h"

#include <qcustomplot.h>

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
        int all = 0, around = 0;
        for (const QCPAxisRect* panel : panels) {
            all += panel->outerRect().height();
            around += panel->outerRect().height() - panel->rect().height();
        }
        const int each = (all - around) / int(panels.size());
        if (each <= 0) return;
        // The factors depend on the plot's size and the panels' margins alone, not on those of the layout before, so
        // that equal contents give equal pictures.
        bool changed = false;
        for (const QCPAxisRect* panel : panels) {
            const int row = rowOf(*plot.plotLayout(), panel);
            if (row < 0) continue;
            const int factor = each + panel->outerRect().height() - panel->rect().height();
            changed |= qRound(plot.plotLayout()->rowStretchFactors().value(row)) != factor;
            plot.plotLayout()->setRowStretchFactor(row, factor);
        }
        if (!changed) return;
        for (const auto phase :
             {QCPLayoutElement::upPreparation, QCPLayoutElement::upMargins, QCPLayoutElement::upLayout})
            plot.plotLayout()->update(phase);
    });
}

} // namespace kvscope::ui
