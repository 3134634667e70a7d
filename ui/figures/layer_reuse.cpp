// Figure: may a layer reuse the choice of the layer below it? Overlap of adjacent layers beside the attention mass that
// each captures.
#include "profiler/export/layer_overlap.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope::ui {
namespace {

bool layerReuseDrawable(const reports::RunData& run) {
    return run.row.level != RecordLevel::Counters && run.summary.selected > 0 && run.row.layers > 1;
}

std::string layerReuseRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), layerReuseDrawable)) return {};
    return theRuns(sources) + ", and none holds the selected blocks of two layers";
}

FigureData makeLayerReuse(const FigureSources& sources) {
    FigureData data;
    data.panels.resize(2);
    FigurePanel &overlap = data.panels[0], &mass = data.panels[1];
    overlap.xTitle = mass.xTitle = "Layer that would reuse the choice below it";
    overlap.yTitle = "Overlap with the layer below";
    mass.yTitle = "Attention mass";
    overlap.yHigh = mass.yHigh = 1;
    ByRun words;
    for (const reports::RunData& run : sources.runs) {
        if (!layerReuseDrawable(run)) continue;
        const std::vector<LayerPair> pairs = readLayerOverlap(TraceReader(run.path), run.row.runId);
        if (pairs.empty()) continue;
        FigureSeries all, chosen, own, reused;
        all.name = run.row.name + ", all blocks";
        chosen.name = run.row.name + ", without sink and window";
        own.name = run.row.name + ", own choice";
        reused.name = run.row.name + ", shared part (estimate)";
        reused.hollow = true;
        const auto add = [](FigureSeries& series, int layer, const std::optional<double>& value) {
            if (!value) return;
            series.x.push_back(layer);
            series.y.push_back(*value);
        };
        for (const LayerPair& pair : pairs) {
            add(all, pair.next, pair.overlap());
            add(chosen, pair.next, pair.chosenOverlap());
            add(own, pair.next, pair.nextMass);
            add(reused, pair.next, pair.sharedMass());
        }
        for (FigureSeries* series : {&all, &chosen})
            if (!series->x.empty()) overlap.series.push_back(std::move(*series));
        for (FigureSeries* series : {&own, &reused})
            if (!series->x.empty()) mass.series.push_back(std::move(*series));
        words.add(run, reuseVerdict(pairs));
    }
    if (mass.series.empty()) data.panels.pop_back();
    data.note = fmt::format(
        "Above: of the blocks that a layer selects, the share that the layer below it, among those that select, had "
        "selected in the same step; means over decode steps, sequences and KV heads. Below, where the oracle recorded "
        "it: attention mass of the layer's own choice, and an estimate of what is left of it on the shared blocks, if "
        "these hold as much as the others. A layer counts as able to reuse from {:.0f} % of the blocks chosen without "
        "sink and window. {}.",
        100 * kReusable, words.empty() ? std::string("Nothing was chosen here") : "Here " + words.words());
    return data;
}

} // namespace

const FigureEntry kLayerReuseFigure{
    "layer-reuse",
    "May a layer reuse the choice of the layer below",
    "what authors of index sharing ask",
    "give traces recorded at level selections or full, of a method that selects blocks in more than one layer",
    layerReuseRefusal,
    makeLayerReuse};

} // namespace kvscope::ui
