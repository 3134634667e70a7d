// Figure: the blocks loaded per step and the throughput against the size of the batch.
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

double batchOf(const reports::RunData& run) { return run.steps.empty() ? std::nan("") : double(run.row.sequences); }

std::string refusal(const FigureSources& sources) {
    const auto sizes = distinct(sources, batchOf);
    if (sizes.size() >= 2) return {};
    if (sizes.empty()) return theRuns(sources) + ", and no decode step";
    return fmt::format("every run decoded {:g} sequence{} together", sizes[0], sizes[0] == 1 ? "" : "s");
}

FigureData make(const FigureSources& sources) {
    SeriesByName loads, speeds;
    for (const reports::RunData& run : sources.runs) {
        if (run.steps.empty()) continue;
        const std::string name = groupName(run, sources);
        loads.add(name, batchOf(run), run.summary.missesPerStep);
        speeds.add(name, batchOf(run), tokensPerSecond(run), "measured");
    }
    FigureData data;
    data.panels.resize(2);
    data.panels[0].yTitle = "KV blocks loaded per step";
    data.panels[0].series = loads.take();
    data.panels[1].yTitle = "Tokens per second";
    data.panels[1].series = speeds.take();
    for (FigurePanel& panel : data.panels) {
        panel.xTitle = "Batch (sequences)";
        panel.xLog = true;
        panel.xTicks = distinct(sources, batchOf);
    }
    data.note = "Means over decode steps without cold ones; blocks of all layers and KV heads. Throughput is measured "
                "wall time; the time "
                "of a modelled link is not in it.";
    return data;
}

} // namespace

const FigureEntry kBatchFigure{"batch",
                               "KV blocks loaded and throughput against batch",
                               "SparseServe, Fig. 1",
                               "give traces of runs with at least two batch sizes (--batch ...)",
                               refusal,
                               make};

} // namespace kvscope::ui
