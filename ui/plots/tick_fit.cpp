#include "ui/plots/tick_fit.h"

#include <qcustomplot.h>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr double kLines = 1.7; // of text from tick to tick

/// The count that the ticker had before anybody fitted it.
int wantedCount(QCPAxis& axis) {
    QCPAxisTicker& ticker = *axis.ticker();
    if (axis.property("kvscopeTicker").value<quintptr>() != quintptr(&ticker) ||
        axis.property("kvscopeFitted").toInt() != ticker.tickCount()) { // another ticker, or its owner chose
        axis.setProperty("kvscopeTicker", QVariant::fromValue(quintptr(&ticker)));
        axis.setProperty("kvscopeWanted", ticker.tickCount());
    }
    return axis.property("kvscopeWanted").toInt();
}

bool fit(QCPAxis& axis, int pixels) {
    const int wanted = wantedCount(axis);
    const int room = int(pixels / (kLines * QFontMetrics(axis.tickLabelFont()).height()));
    const int fewest = pixels < 40 ? 1 : 2;
    const int count = std::min(wanted, std::max(fewest, room));
    const bool changed = count != axis.ticker()->tickCount();
    axis.ticker()->setTickCount(count);
    axis.setProperty("kvscopeFitted", count);
    return changed;
}

} // namespace

void fitTicksToRoom(QCustomPlot& plot) {
    QObject::connect(&plot, &QCustomPlot::afterLayout, &plot, [&plot] {
        bool changed = false;
        for (QCPAxisRect* rect : plot.axisRects())
            for (QCPAxis* axis : rect->axes(QCPAxis::atLeft | QCPAxis::atRight))
                if (axis->visible() && axis->ticks()) changed = fit(*axis, rect->height()) || changed;
        if (!changed) return;
        for (const auto phase :
             {QCPLayoutElement::upPreparation, QCPLayoutElement::upMargins, QCPLayoutElement::upLayout})
            plot.plotLayout()->update(phase); // with the new ticks
    });
}

} // namespace kvscope::ui
