// Figure: the blocks loaded per step and the throughput against the size of the batch.
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

double batchOf(const reports::RunData& run) { return run.steps.empty() ? std::nan("") : double(run.row.sequences); }

std::string batchRefusal(const FigureSources& sources) {
    const auto sizes = distinct(sources, batchOf);
    if (sizes.size() >= 2) return {};
    if (sizes.empty()) return theRuns(sources) + ", and no decode step";
    return fmt::format("every run decoded {:g} sequence{} together", sizes[0], sizes[0] == 1 ? "" : "s");
}

/// How blocks loaded and throughput change from the smallest to the largest batch, method by method.
std::string changeWords(const std::vector<FigureSeries>& loads, const std::vector<FigureSeries>& speeds) {
    std::string words;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        const FigureSeries &load = loads[i], &speed = speeds[i];
        if (speed.x.size() < 2) continue;
        words += fmt::format("{}{}, batch {:g} to {:g}: throughput x{:.2f}", words.empty() ? "" : "; ", speed.name,
                             speed.x.front(), speed.x.back(), speed.y.back() / speed.y.front());
        if (load.y.front() > 0) words += fmt::format(", blocks loaded x{:.2f}", load.y.back() / load.y.front());
    }
    return words.empty() ? "no method has two sizes" : words;
}

FigureData makeBatch(const FigureSources& sources) {
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
    data.note =
        fmt::format("Means over decode steps, {}; blocks of all layers and KV heads. Throughput is {}; the "
                    "time of a modelled link is not in it. SparseServe, Fig. 1, states a throughput of x2.07 "
                    "from batch 2 to 6 and of /1.73 from 6 to 12, where x21.36 as many blocks are loaded; here "
                    "{}.",
                    coldWords(), throughputWords(sources), changeWords(data.panels[0].series, data.panels[1].series));
    return data;
}

} // namespace

const FigureEntry kBatchFigure{"batch",
                               "KV blocks loaded and throughput against batch",
                               "SparseServe, Fig. 1",
                               "give traces of runs with at least two batch sizes (--batch ...)",
                               batchRefusal,
                               makeBatch};

} // namespace kvscope::ui
