#include "ui/views/serving/iteration_view.h"

#include "base/indexed.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"

#include <algorithm>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr double kMissedPixels = 4;
constexpr QMargins kLeastMargins(15, 3, 15, 2); // px around a strip, beside its axes
constexpr QSize kLeastPanel(50, 44);            // px; all strips stand in a window of 1024 x 700
constexpr QSize kLowPanel(50, 20);              // px; in a low view: all strips stand in a window of 960 x 600
constexpr QMargins kLowMargins(15, 1, 15, 0);
constexpr int kLegendLines = 2, kLowLines = 1; // at most: a low view needs its height
constexpr int kRowSpacing = 2;                 // px; a legend belongs to the strip below it

double middleOf(const IterationRow& row) { return double(row.startNs) + double(row.durationNs) / 2; }

} // namespace

/// The colours of the strips repeat, so each strip has its own legend.
void IterationView::addStrip(std::unique_ptr<ServingStrip> strip, bool zoomsValues, double share) {
    PlotCanvas& plot = canvas();
    legends_.push_back(new LegendStrip(&plot));
    legends_.back()->setMostLines(kLegendLines);
    plot.plotLayout()->addElement(plot.plotLayout()->rowCount(), 0, legends_.back());
    QCPAxisRect& panel = *plot.addPanel(zoomsValues);
    panel.setMinimumMargins(kLeastMargins);
    panel.setMinimumSize(kLeastPanel);
    strip->build(panel);
    plot.plotLayout()->setRowStretchFactor(plot.plotLayout()->rowCount() - 1, share);
    strips_.push_back(std::move(strip));
}

void IterationView::finishStrips() {
    PlotCanvas& plot = canvas();
    for (QCPAxisRect* panel : plot.panels())
        if (panel != plot.panels().back()) panel->axis(QCPAxis::atBottom)->setTickLabels(false);
    plot.plotLayout()->setRowSpacing(kRowSpacing);
    plot.setSelectsSteps(false);
    plot.setMinimumSpan(1e4); // 10 us
    plot.applyTheme(Theme::current());
    themed(Theme::current());
}

void IterationView::setLow(bool low) {
    if (low == low_) return;
    low_ = low;
    for (LegendStrip* legend : legends_) legend->setMostLines(low ? kLowLines : kLegendLines);
    for (QCPAxisRect* panel : canvas().panels()) {
        panel->setMinimumSize(low ? kLowPanel : kLeastPanel);
        panel->setMinimumMargins(low ? kLowMargins : kLeastMargins);
    }
    canvas().plotLayout()->setRowSpacing(low ? 0 : kRowSpacing);
    replot();
    canvas().updateGeometry();
}

void IterationView::fill() {
    canvas().setFullX({0, data().end()});
    for (int strip = 0; strip < int(strips_.size()); ++strip) {
        refill(strip);
        strips_[strip]->nameAxis();
    }
    for (QCPAxisRect* panel : canvas().panels()) {
        QCPAxis* time = panel->axis(QCPAxis::atBottom);
        setUnitAxis(time, tr("Time"), Unit::Nanoseconds);
        if (panel != canvas().panels().back()) time->setLabel({});
    }
    showLegends(Theme::current()); // curves may have come or gone
    if (chosenIteration_ < 0 && workspace().cursor().step > 0) cursorMoved();
}

void IterationView::refill(int strip) { canvas().setFullY(strip, strips_[strip]->fill(data())); }

void IterationView::forget() { chooseNothing(); }

void IterationView::cursorMoved() {
    if (isSharing() || (workspace().lastMove() == CursorMove::Follow && chosenIteration_ >= 0)) return;
    const IterationRow* row = data().iterationOf(workspace().cursor().step);
    if (row && row->iteration != chosenIteration_) choose(*row, -1, middleOf(*row));
}

void IterationView::themed(const Theme& theme) {
    for (const auto& strip : strips_) strip->themed(theme);
    for (LegendStrip* legend : legends_) legend->applyTheme(theme);
    showLegends(theme);
}

void IterationView::showLegends(const Theme& theme) {
    for (std::size_t i = 0; i < strips_.size(); ++i) legends_[i]->setSwatches(strips_[i]->swatches(theme));
}

void IterationView::clickedAt(int panel, QPointF at) {
    const IterationRow* iteration = data().iterationAt(at.x());
    if (!iteration) { // the mark of a token stands at the end of its iteration: a click may miss it by some pixels
        const QCPAxis* time = canvas().panels()[panel]->axis(QCPAxis::atBottom);
        iteration = data().iterationAt(time->pixelToCoord(time->coordToPixel(at.x()) - kMissedPixels));
    }
    if (!iteration) return chooseNothing();
    chooseAndShare(*iteration, requestAt(panel, at),
                   std::clamp(at.x(), double(iteration->startNs), double(iteration->endNs())));
}

QString IterationView::tooltipAt(int panel, QPointF at) {
    QStringList lines;
    const auto add = [&](const QString& name, const QString& value) {
        lines << QStringLiteral("<tr><td>%1&nbsp;&nbsp;</td><td>%2</td></tr>").arg(name, value.toHtmlEscaped());
    };
    strips_[panel]->addFacts(data(), at.x(), at.y(), add);
    if (const IterationRow* iteration = data().iterationAt(at.x())) {
        add(tr("Iteration"), formatCount(iteration->iteration));
        add(tr("Took"), servingTime(double(iteration->durationNs)));
        add(tr("Predicted"), servingTime(double(iteration->predictedNs)));
        add(tr("Decode rows"), formatCount(iteration->decodeRows));
        add(tr("Prompt tokens read"), formatCount(iteration->prefillTokens));
        add(tr("Waiting, paused"),
            QStringLiteral("%1, %2").arg(formatCount(iteration->waiting), formatCount(iteration->paused)));
        add(tr("Working sets"), servingBytes(double(iteration->workingSetBytes)));
        add(tr("Room for them"), servingBytes(double(iteration->availableBytes)));
        if (iteration->surprises > 0) add(tr("Blocks outside of them"), formatCount(iteration->surprises));
        add(tr("Plan bound by"), servingLimit(QString::fromStdString(iteration->limitedBy)));
    }
    return lines.isEmpty() ? QString() : QStringLiteral("<table>%1</table>").arg(lines.join(QString()));
}

void IterationView::moveCursor(int steps, int) {
    const NumberedSpan<const IterationRow> rows = data().rows.iterations;
    if (rows.empty()) return;
    const IterationRow* now = chosenIteration();
    const int at = now ? int(now - rows.data()) + steps : steps > 0 ? steps - 1 : 0;
    const IterationRow& row = rows[std::clamp(at, 0, rows.count() - 1)];
    chooseAndShare(row, chosenRequest_, middleOf(row));
    canvas().reveal(middleOf(row));
}

void IterationView::jumpCursor(bool toEnd) {
    const int size = int(data().rows.iterations.size());
    moveCursor(toEnd ? size : -size, 0);
}

void IterationView::choose(const IterationRow& iteration, std::int64_t request, double atNs) {
    chosenIteration_ = iteration.iteration, chosenRequest_ = request;
    CursorMark mark;
    mark.x = atNs;
    showMark(mark, canvas().panels());
    chose();
}

void IterationView::chooseAndShare(const IterationRow& iteration, std::int64_t request, double atNs) {
    choose(iteration, request, atNs);
    shareIteration(iteration, data().servedRow(request));
}

void IterationView::chooseNothing() {
    chosenIteration_ = -1, chosenRequest_ = -1;
    canvas().overlay().clear();
    canvas().replotOverlay();
    chose();
}

} // namespace kvscope::ui
