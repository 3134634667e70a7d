#include "ui/plots/tick_fit.h"

#include <qcustomplot.h>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr double kLines = 1.7; // least distance of two ticks, in heights of a text line

/// The number of ticks that the axis' owner chose, as it was before `fit` changed it.
int wantedCount(QCPAxis& axis) {
    QCPAxisTicker& ticker = *axis.ticker();
    if (axis.property("kvscopeTicker").value<quintptr>() != quintptr(&ticker) ||
        axis.property("kvscopeFitted").toInt() != ticker.tickCount()) { // the owner set another ticker or another count
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

/// The longest of these forms of a title that fits: "A: time of the step (ms)", "A (ms)", "(ms)". A title without a
/// unit is cut at its end.
QString shortened(const QString& title, const QFontMetrics& metrics, int room) {
    const auto fits = [&](const QString& text) { return metrics.horizontalAdvance(text) <= room; };
    if (fits(title)) return title;
    const qsizetype open = title.lastIndexOf(QLatin1Char('(')), colon = title.indexOf(QLatin1String(": "));
    if (open <= 0 || !title.endsWith(QLatin1Char(')'))) return metrics.elidedText(title, Qt::ElideRight, room);
    const QString unit = title.mid(open);
    if (colon > 0 && fits(title.left(colon) + QLatin1Char(' ') + unit))
        return title.left(colon) + QLatin1Char(' ') + unit;
    return unit;
}

/// Shortens the title of an axis to `room` pixels; a longer title would run into that of the next panel.
void fitTitle(QCPAxis& axis, int room) {
    if (!axis.property("kvscopeShownTitle").isValid() || axis.property("kvscopeShownTitle").toString() != axis.label())
        axis.setProperty("kvscopeTitle", axis.label()); // the owner has set another title
    const QString title = axis.property("kvscopeTitle").toString();
    const QString fitting = shortened(title, QFontMetrics(axis.labelFont()), room);
    axis.setLabel(fitting.isEmpty() && !title.isEmpty() ? QStringLiteral("…") : fitting); // a title keeps its margin
    axis.setProperty("kvscopeShownTitle", axis.label());
}

} // namespace

void fitTicksToRoom(QCustomPlot& plot) {
    QObject::connect(&plot, &QCustomPlot::afterLayout, &plot, [&plot] {
        bool changed = false;
        for (QCPAxisRect* rect : plot.axisRects())
            for (QCPAxis* axis : rect->axes(QCPAxis::atLeft | QCPAxis::atRight))
                if (axis->visible()) {
                    if (axis->ticks()) changed = fit(*axis, rect->height()) || changed;
                    fitTitle(*axis, rect->height());
                }
        if (!changed) return;
        for (const auto phase :
             {QCPLayoutElement::upPreparation, QCPLayoutElement::upMargins, QCPLayoutElement::upLayout})
            plot.plotLayout()->update(phase); // lays out again for the new ticks
    });
}

} // namespace kvscope::ui
