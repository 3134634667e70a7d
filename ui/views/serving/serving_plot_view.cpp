#include "ui/views/serving/serving_plot_view.h"

#include "ui/plots/plot_canvas.h"

#include <utility>

namespace kvscope::ui {
ServingPlotView::ServingPlotView(Workspace& workspace, const QString& title, const QString& whatItShows,
                                 QWidget* parent)
    : PlotView(workspace, title, parent), whatItShows_(whatItShows), timer_(GrowthTimer::kReadMs, [this] { ask(); }) {}

void ServingPlotView::runChanged() {
    data_ = {};
    forget();
    if (showEmptyWithoutRun(whatItShows_)) return;
    showReading();
    canvas().forgetZoom();
    ask();
}

void ServingPlotView::runGrew() {
    if (run()) timer_.grew(run()->row.status != RunStatus::Running);
}

void ServingPlotView::ask() {
    if (!run()) return;
    workspace().query<ServingData>(
        this, "serving", run()->key,
        [id = run()->key.runId, wanted = wish()](TraceReader& reader) { return readServingData(reader, id, wanted); },
        [this](ServingData came) {
            timer_.answered();
            take(std::move(came));
        });
}

void ServingPlotView::take(ServingData came) {
    const bool grows = run() && run()->row.status == RunStatus::Running;
    if (!came.serving) {
        if (grows && run()->row.serves())
            return showEmpty(tr("No request has come yet"),
                             tr("The server runs. Its requests appear here as they arrive."));
        if (grows) return;
        return showEmpty(tr("This run served no requests"),
                         tr("It decoded one batch from its beginning to its end. kvscope-cli load --trace records "
                            "runs whose requests come and go."));
    }
    data_ = std::move(came);
    showEmpty({}, {});
    fill();
    replot();
    updateNote();
}

void ServingPlotView::shareIteration(const IterationRow& iteration, int row) {
    Cursor cursor = workspace().cursor();
    cursor.step = iteration.iteration;
    if (row >= 0) cursor.sequence = row;
    sharing_ = true;
    workspace().setCursor(cursor);
    sharing_ = false;
}

} // namespace kvscope::ui
