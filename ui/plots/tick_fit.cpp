#include "ui/plots/tick_fit.h"

#include <qcustomplot.h>

#include <algorithm>
#include <utility>
#include <vector>

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

/// Reduces the ticks of a vertical axis. @return whether their number has changed.
bool fitUp(QCPAxis& axis, int pixels) {
    const int wanted = wantedCount(axis);
    const int room = int(pixels / (kLines * QFontMetrics(axis.tickLabelFont()).height()));
    const int fewest = pixels < 40 ? 1 : 2;
    const int count = std::min(wanted, std::max(fewest, room));
    const bool changed = count != axis.ticker()->tickCount();
    axis.ticker()->setTickCount(count);
    axis.setProperty("kvscopeFitted", count);
    return changed;
}

/// @return whether all labels that a horizontal axis would have with the ticker's present count stand apart.
bool standApart(const QCPAxis& axis) {
    QVector<double> ticks;
    QVector<QString> labels;
    axis.ticker()->generate(axis.range(), axis.parentPlot()->locale(), axis.numberFormat().at(0).toLatin1(),
                            axis.numberPrecision(), ticks, nullptr, &labels);
    std::vector<std::pair<double, double>> places; // pixels: where a label begins and ends
    const QFontMetrics metrics(axis.tickLabelFont());
    for (qsizetype i = 0; i < ticks.size(); ++i) {
        if (labels[i].isEmpty()) continue;
        const double at = axis.coordToPixel(ticks[i]), half = metrics.size(0, labels[i]).width() / 2.0;
        places.emplace_back(at - half, at + half);
    }
    std::sort(places.begin(), places.end());
    const double gap = metrics.horizontalAdvance(QLatin1Char('0')); // less, and two numbers read as one
    return std::adjacent_find(places.begin(), places.end(), [gap](const auto& left, const auto& right) {
               return right.first < left.second + gap;
           }) == places.end();
}

/// Reduces the ticks of a horizontal axis. @return whether their number has changed.
bool fitAcross(QCPAxis& axis) {
    QCPAxisTicker& ticker = *axis.ticker();
    const int before = ticker.tickCount();
    int count = wantedCount(axis);
    for (ticker.setTickCount(count); count > 1 && !standApart(axis); ticker.setTickCount(count)) --count;
    axis.setProperty("kvscopeFitted", count);
    return count != before;
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
    const QFontMetrics metrics(axis.labelFont());
    const QString brief = axis.property(kShortTitle).toString();
    const bool whole = brief.isEmpty() || metrics.horizontalAdvance(title) <= room;
    const QString fitting = shortened(whole ? title : brief, metrics, room);
    axis.setLabel(fitting.isEmpty() && !title.isEmpty() ? QStringLiteral("…") : fitting); // a title keeps its margin
    axis.setProperty("kvscopeShownTitle", axis.label());
}

/// @return pixels: the title of a horizontal axis stands below the middle of the axis and may be as much longer than
/// it as there is room on both sides.
int roomAcross(const QCPAxisRect& rect) {
    const QRect inner = rect.rect(), outer = rect.outerRect();
    return inner.width() + 2 * std::min(inner.left() - outer.left(), outer.right() - inner.right());
}

} // namespace

void fitTicksToRoom(QCustomPlot& plot) {
    QObject::connect(&plot, &QCustomPlot::afterLayout, &plot, [&plot] {
        bool changed = false;
        for (QCPAxisRect* rect : plot.axisRects())
            for (QCPAxis* axis : rect->axes()) {
                if (!axis->visible()) continue;
                const bool across = axis->orientation() == Qt::Horizontal;
                if (axis->ticks() && (!across || axis->tickLabels()))
                    changed = (across ? fitAcross(*axis) : fitUp(*axis, rect->height())) || changed;
                fitTitle(*axis, across ? roomAcross(*rect) : rect->height());
            }
        if (!changed) return;
        for (const auto phase :
             {QCPLayoutElement::upPreparation, QCPLayoutElement::upMargins, QCPLayoutElement::upLayout})
            plot.plotLayout()->update(phase); // lays out again for the new ticks
    });
}

} // namespace kvscope::ui
