// Figure: locality by layer, the share of a step's selected blocks that the step before had selected too.
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

bool hasLocality(const reports::RunData& run) {
    return std::any_of(run.layers.begin(), run.layers.end(), [](const auto& l) { return l.localityCount > 0; });
}

std::string localityRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), hasLocality)) return {};
    return theRuns(sources) + ", and no layer selects blocks in two steps in a row";
}

FigureData makeLocality(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.xTitle = "Layer";
    panel.yTitle = "Locality γ";
    panel.yFromZero = false;
    panel.yHigh = 1;
    for (const reports::RunData& run : sources.runs) {
        if (!hasLocality(run)) continue;
        FigureSeries& series = panel.series.emplace_back();
        series.name = run.row.name;
        for (const reports::LayerTotals& layer : run.layers) {
            if (layer.localityCount == 0) continue;
            series.x.push_back(layer.layer);
            series.y.push_back(layer.localityMean);
        }
    }
    data.note =
        "Mean over decode steps, sequences and KV heads of the share of selected KV blocks that the step before "
        "selected too; steps that open a block are left out.";
    return data;
}

} // namespace

const FigureEntry kLocalityFigure{
    "locality",      "Locality by layer",
    "NOSA, Fig. 2d", "give traces of a method that selects blocks, with at least two decode steps",
    localityRefusal, makeLocality};

} // namespace kvscope::ui
