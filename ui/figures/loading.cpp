// Figure: how much of a decode step waits for blocks to be loaded, run by run.
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

bool loadingDrawable(const reports::RunData& run) {
    return !run.steps.empty() && run.row.knows.has(Known::ExposedTimes) && run.summary.missesPerStep > 0;
}

std::string loadingRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), loadingDrawable)) return {};
    return theRuns(sources) + ", and none knows how long its decode steps waited for blocks";
}

/// How blocks came to the device, as the trace names it.
std::string mechanismOf(const reports::RunData& run) {
    for (const TransferRow& row : TraceReader(run.path).transfers(run.row.runId, run.steps.front().step))
        if (row.toDevice && row.blocks > 0) return row.mechanism;
    return "no transfer";
}

FigureData makeLoading(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::StackedBars;
    FigureSeries other, measured, modelled;
    other.name = "Other";
    other.basis = "measured";
    measured.name = "Loading";
    measured.basis = "measured";
    modelled.name = "Loading, modelled";
    modelled.basis = "modelled";
    modelled.hollow = true;
    double longest = 0;
    for (const reports::RunData& run : sources.runs)
        if (loadingDrawable(run))
            longest = std::max(longest, 1e6 * (run.summary.stepMs + run.summary.exposedMsPerStep));
    const TimeUnit unit = timeUnit(longest);
    panel.xTitle = fmt::format("Wall time of a decode step ({})", unit.name);
    ByRun shares;
    for (const reports::RunData& run : sources.runs) {
        if (!loadingDrawable(run)) continue;
        const bool isModelled = run.row.timing == Timing::Modelled;
        const double exposed = 1e6 * run.summary.exposedMsPerStep / unit.ns, step = 1e6 * run.summary.stepMs / unit.ns;
        const double y = double(panel.names.size());
        panel.names.push_back(fmt::format("{}, batch {}", run.row.name, run.row.sequences));
        for (FigureSeries* series : {&other, &measured, &modelled}) series->y.push_back(y);
        // a measured wait is a part of the measured step, a modelled one comes on top
        other.x.push_back(isModelled ? step : std::max(step - exposed, 0.0));
        measured.x.push_back(isModelled ? 0 : exposed);
        modelled.x.push_back(isModelled ? exposed : 0);
        const double whole = isModelled ? step + exposed : step;
        shares.add(run, fmt::format("{:.2f} % ({})", whole > 0 ? 100 * exposed / whole : 0.0, mechanismOf(run)));
    }
    for (FigureSeries* series : {&other, &measured, &modelled})
        if (std::any_of(series->x.begin(), series->x.end(), [](double x) { return x > 0; }))
            panel.series.push_back(std::move(*series));
    data.note = fmt::format(
        "Mean over decode steps, {}. Loading is the time in which a step waits for blocks; an open bar is what a "
        "modelled link would add. SparseServe, Fig. 14a, states that loading takes 69.94 % at batch 8 with a copy call "
        "for each block, and up to 9.97x less with one kernel; here loading takes {}.",
        coldWords(), shares.words());
    return data;
}

} // namespace

const FigureEntry kLoadingFigure{"loading",
                                 "Share of a decode step that waits for blocks",
                                 "SparseServe, Fig. 14a",
                                 "give traces of runs that load blocks (--device-kv ...), e.g. of several batch sizes "
                                 "(--batch ...)",
                                 loadingRefusal,
                                 makeLoading};

} // namespace kvscope::ui
