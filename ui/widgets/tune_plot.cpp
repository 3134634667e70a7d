#include "ui/widgets/tune_plot.h"

#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"

#include <algorithm>
#include <vector>

namespace kvscope::ui {
namespace {

double shareOf(const TuneRow& row) { return row.measured->quality.value(); }
double stepMs(const TuneRow& row) { return row.measured->sums.stepNs() / 1e6; }

} // namespace

TunePlot::TunePlot(QObject* parent) : QObject(parent) {
    plot_ = new PlotCanvas;
    plot_->setObjectName(QStringLiteral("tunePlot"));
    plot_->setAccessibleName(tr("Quality against the time of a step"));
    plot_->setMinimumSize(480, 180);
    legend_ = new LegendStrip(plot_);
    plot_->plotLayout()->addElement(0, 0, legend_);
    plot_->setSelectsSteps(false);
    QCPAxisRect* rect = plot_->addPanel(false);
    QCPAxis *x = rect->axis(QCPAxis::atBottom), *y = rect->axis(QCPAxis::atLeft);
    x->setLabel(tr("ms per step"));
    y->setLabel(tr("Good answers"));
    plot_->setFullY(0, {-0.05, 1.05});
    floorLine_ = new QCPGraph(x, y);
    front_ = new QCPGraph(x, y);
    front_->setLineStyle(QCPGraph::lsStepLeft);
    predicted_ = new QCPGraph(x, y);
    measured_ = new QCPGraph(x, y);
    chosen_ = new QCPGraph(x, y);
    intervals_ = new QCPErrorBars(x, y);
    intervals_->setDataPlottable(measured_);
    for (QCPGraph* graph : {predicted_, measured_, chosen_}) graph->setLineStyle(QCPGraph::lsNone);
    show(nullptr);
}

void TunePlot::show(const TuneResult* result) {
    for (QCPGraph* graph : {measured_, predicted_, front_, chosen_, floorLine_}) graph->data()->clear();
    intervals_->data()->clear();
    double most = 1;
    if (result) {
        std::vector<std::size_t> rows = result->order; // error bars belong to points in the order of their keys
        std::ranges::sort(rows, {}, [&](std::size_t row) { return stepMs(result->rows[row]); });
        for (const std::size_t index : rows) {
            const TuneRow& row = result->rows[index];
            const ShareInterval interval = row.measured->quality.interval();
            measured_->addData(stepMs(row), shareOf(row));
            intervals_->addData(shareOf(row) - interval.low, interval.high - shareOf(row));
            predicted_->addData(row.predicted.stepNs / 1e6, shareOf(row));
            if (row.front) front_->addData(stepMs(row), shareOf(row));
            if (result->recommended == index) chosen_->addData(stepMs(row), shareOf(row));
            most = std::max({most, stepMs(row), row.predicted.stepNs / 1e6});
        }
        floorLine_->addData(0, result->request.floor);
        floorLine_->addData(2 * most, result->request.floor);
    }
    plot_->setFullX({0, 1.1 * most});
    plot_->forgetZoom();
    plot_->replot(QCustomPlot::rpQueuedReplot);
}

void TunePlot::applyTheme(const Theme& theme) {
    plot_->applyTheme(theme);
    legend_->applyTheme(theme);
    measured_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(theme.runA), QBrush(theme.runA), 7));
    predicted_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssSquare, QPen(theme.mutedText), Qt::NoBrush, 7));
    chosen_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(theme.ok), QBrush(theme.ok), 11));
    intervals_->setPen(QPen(theme.runA, 1));
    front_->setPen(QPen(theme.runA, 1, Qt::DotLine));
    floorLine_->setPen(QPen(theme.warning, 1, Qt::DashLine));
    legend_->setSwatches({{tr("Measured, 95 % interval"), theme.runA, Swatch::Mark::Dot, {}},
                          {tr("Its predicted time"), theme.mutedText, Swatch::Mark::Frame, {}},
                          {tr("Recommended"), theme.ok, Swatch::Mark::Dot, {}},
                          {tr("Front"), theme.runA, Swatch::Mark::Line, {}},
                          {tr("Floor"), theme.warning, Swatch::Mark::Dashes, {}}});
    plot_->replot(QCustomPlot::rpQueuedReplot);
}

} // namespace kvscope::ui
