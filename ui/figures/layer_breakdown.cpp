// Figure: the decode time of one layer by its components, and the layer's share of the rest of the step.
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <array>

namespace kvscope::ui {
namespace {

constexpr std::array<const char*, kStageCount> kTitles{"QKV linear", "RoPE",    "Compression", "Stage 1",  "Pooling",
                                                       "Offloading", "Stage 2", "Attention",   "O linear", "FFN"};
constexpr int kOtherColour = kStageCount + kStepStageCount;

struct LayerMean {
    std::array<double, kStageCount> stageNs{};
    double otherNs = 0, exposedNs = 0;
};

bool selects(const reports::LayerTotals& layer) { return layer.selected > 0; }

/// The mean layer of a decode step that means count: of those that select, or of all if none does.
LayerMean meanLayer(const reports::RunData& run) {
    const bool any = std::any_of(run.layers.begin(), run.layers.end(), selects);
    LayerMean mean;
    double times = 0;
    for (const reports::LayerTotals& layer : run.layers) {
        if (any && !selects(layer)) continue;
        times += double(layer.warmSteps);
        mean.exposedNs += double(layer.warmExposedNs);
        for (std::size_t i = 0; i < mean.stageNs.size(); ++i) mean.stageNs[i] += double(layer.warmStageNs[i]);
    }
    for (double& ns : mean.stageNs) ns /= times;
    // measured exposed time is part of the offloading stage
    mean.exposedNs = run.row.timing == Timing::Modelled ? mean.exposedNs / times : 0;
    mean.otherNs = run.componentMeanNs(kOtherName) / double(run.layers.size());
    return mean;
}

bool layerBreakdownDrawable(const reports::RunData& run) { return !run.steps.empty() && !run.layers.empty(); }

std::string layerBreakdownRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), layerBreakdownDrawable)) return {};
    return theRuns(sources) + ", and no decode step";
}

FigureData makeLayerBreakdown(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::StackedBars;
    std::vector<LayerMean> means;
    double longest = 0;
    for (const reports::RunData& run : sources.runs) {
        if (!layerBreakdownDrawable(run)) continue;
        means.push_back(meanLayer(run));
        panel.names.push_back(run.row.name);
        double sum = means.back().otherNs + means.back().exposedNs;
        for (const double ns : means.back().stageNs) sum += ns;
        longest = std::max(longest, sum);
    }
    const TimeUnit unit = timeUnit(longest);
    panel.xTitle = std::string("Wall time of a layer in a decode step (") + unit.name + ")";
    const auto add = [&](const char* name, int colour, const std::string& basis, auto&& value) {
        FigureSeries series;
        series.name = name;
        series.colour = colour;
        series.basis = basis;
        series.hollow = basis == "modelled";
        bool any = false;
        for (std::size_t bar = 0; bar < means.size(); ++bar) {
            series.x.push_back(value(means[bar]) / unit.ns);
            series.y.push_back(double(bar));
            any |= series.x.back() > 0;
        }
        if (any) panel.series.push_back(std::move(series));
    };
    for (std::size_t stage = 0; stage < kTitles.size(); ++stage)
        add(kTitles[stage], int(stage), "measured", [&](const LayerMean& mean) { return mean.stageNs[stage]; });
    add("Others", kOtherColour, "measured", [](const LayerMean& mean) { return mean.otherNs; });
    add("Exposed transfer, modelled", int(Stage::Offloading), "modelled",
        [](const LayerMean& mean) { return mean.exposedNs; });
    data.note = std::string("Mean over decode steps, ") + coldWords() +
                ", and the layers that select blocks (all layers where none does). Others is the time of a step that "
                "no stage claims, divided by the layers. An open bar is what a modelled link would add to the measured "
                "time.";
    return data;
}

} // namespace

const FigureEntry kLayerBreakdownFigure{"layer-breakdown",     "Wall time of one layer by nine components",
                                        "NOSA, Fig. 10",       "give traces with at least one decode step",
                                        layerBreakdownRefusal, makeLayerBreakdown};

} // namespace kvscope::ui
