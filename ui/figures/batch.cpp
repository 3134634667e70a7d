// Figure: the blocks loaded per step and the throughput against the size of the batch.
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <vector>

namespace kvscope::ui {
namespace {

/// The number of sequences of a run; NaN for a server's run, whose steps have different numbers of rows.
double batchOf(const reports::RunData& run) {
    return run.steps.empty() || isServed(run) ? std::nan("") : double(run.row.sequences);
}

/// The different sizes, ascending: of runs, and of the iterations of servers.
std::vector<double> sizesOf(const FigureSources& sources) {
    std::vector<double> sizes = distinct(sources, batchOf);
    for (const ServedSteps& server : servedSteps(sources))
        for (const RowsLoad& load : server.byRows) sizes.push_back(double(load.rows));
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
}

std::string batchRefusal(const FigureSources& sources) {
    const std::vector<double> sizes = sizesOf(sources);
    if (sizes.size() >= 2) return {};
    if (sizes.empty()) return theRuns(sources) + ", and no decode step";
    return fmt::format("every run decoded {:g} sequence{} together", sizes[0], sizes[0] == 1 ? "" : "s");
}

/// How blocks loaded and throughput change from one point of the series to another: ", batch 2 to 6: throughput x2.07,
/// blocks loaded x1.10".
std::string changeBetween(const FigureSeries& load, const FigureSeries& speed, std::size_t from, std::size_t to) {
    const double gain = speed.y[to] / speed.y[from];
    std::string words = fmt::format(", batch {:g} to {:g}: throughput {}{:.2f}", speed.x[from], speed.x[to],
                                    gain < 1 ? "/" : "x", gain < 1 ? 1 / gain : gain);
    if (load.y[from] > 0) words += fmt::format(", blocks loaded x{:.2f}", load.y[to] / load.y[from]);
    return words;
}

/// The changes of every series from the smallest batch to the one of the highest throughput, and from there to the
/// largest.
std::string changeWords(const std::vector<FigureSeries>& loads, const std::vector<FigureSeries>& speeds) {
    std::string words;
    for (std::size_t i = 0; i < speeds.size(); ++i) {
        const FigureSeries &load = loads[i], &speed = speeds[i];
        if (speed.x.size() < 2) continue;
        const auto best = std::size_t(std::max_element(speed.y.begin(), speed.y.end()) - speed.y.begin());
        const std::size_t last = speed.x.size() - 1;
        words += (words.empty() ? "" : "; ") + speed.name;
        if (best > 0) words += changeBetween(load, speed, 0, best);
        if (best < last) words += changeBetween(load, speed, best, last);
    }
    return words.empty() ? "no method has two sizes" : words;
}

FigureData makeBatch(const FigureSources& sources) {
    SeriesByName loads, speeds;
    bool hasRuns = false;
    for (const reports::RunData& run : sources.runs) {
        if (!std::isfinite(batchOf(run))) continue;
        hasRuns = true;
        const std::string name = groupName(run, sources);
        loads.add(name, batchOf(run), run.summary.missesPerStep);
        speeds.add(name, batchOf(run), tokensPerSecond(run), "measured");
    }
    const std::vector<ServedSteps> servers = servedSteps(sources);
    for (const ServedSteps& server : servers)
        for (const RowsLoad& load : server.byRows) {
            loads.add(server.name, double(load.rows), load.blocksPerStep());
            speeds.add(server.name, double(load.rows), load.tokensPerSecond(), "measured");
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
        panel.xTicks = sizesOf(sources);
    }
    if (hasRuns)
        data.note = fmt::format("Means over decode steps, {}; blocks of all layers and KV heads. Throughput is {}; the "
                                "time of a modelled link is not in it. ",
                                coldWords(), throughputWords(sources));
    if (!servers.empty())
        data.note += "Of a server a point is all its decode steps of one number of rows, first steps of requests too, "
                     "and throughput is by the time of these steps, without the prompts that are read beside them. ";
    data.note +=
        fmt::format("{}; here {}.", statedWords("batch"), changeWords(data.panels[0].series, data.panels[1].series));
    return data;
}

} // namespace

const FigureEntry kBatchFigure{
    "batch",
    "KV blocks loaded and throughput against batch",
    "SparseServe, Fig. 1",
    "give traces of runs with at least two batch sizes (--batch ...), or of a server whose iterations have them "
    "(kvscope-cli load --trace FILE)",
    batchRefusal,
    makeBatch};

} // namespace kvscope::ui
