// Figure: how far back each layer's choice looks, and what share of the best blocks and of the attention it holds.
#include "profiler/read/look_back.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

bool lookBackDrawable(const reports::RunData& run) {
    return run.row.level != RecordLevel::Counters && run.summary.selected > 0;
}

std::string lookBackRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), lookBackDrawable)) return {};
    return theRuns(sources) + ", and none holds the selected blocks of a decode step";
}

/// "half of what its layers choose lies within 320 tokens, nine of ten within 900; recall 0.82 to 0.95".
std::string wordsOf(const std::vector<LayerLookBack>& layers) {
    double half = 0, ninety = 0;
    std::optional<double> low, high;
    for (const LayerLookBack& layer : layers) {
        half = std::max(half, layer.median);
        ninety = std::max(ninety, layer.ninety);
        if (!layer.recall) continue;
        low = std::min(low.value_or(1), *layer.recall);
        high = std::max(high.value_or(0), *layer.recall);
    }
    const std::string recall =
        low ? fmt::format("recall {:.2f} to {:.2f}", *low, *high) : std::string("recall was not recorded");
    return fmt::format(
        "in every layer half of what it chooses lies within {:.0f} tokens and nine of ten within {:.0f}, "
        "{}",
        half, ninety, recall);
}

FigureData makeLookBack(const FigureSources& sources) {
    FigureData data;
    data.panels.resize(2);
    FigurePanel &distance = data.panels[0], &share = data.panels[1];
    distance.xTitle = share.xTitle = "Layer";
    distance.yTitle = "Look-back distance (tokens)";
    share.yTitle = "Share";
    share.yHigh = 1;
    ByRun words;
    for (const reports::RunData& run : sources.runs) {
        if (!lookBackDrawable(run)) continue;
        const std::vector<LayerLookBack> layers = readLookBack(TraceReader(run.path), run.row);
        if (layers.empty()) continue;
        FigureSeries median, ninety, recall, mass;
        median.name = run.row.name + ", half";
        ninety.name = run.row.name + ", nine of ten";
        recall.name = run.row.name + ", recall";
        mass.name = run.row.name + ", attention mass";
        for (const LayerLookBack& layer : layers) {
            for (const auto& [series, value] : {std::pair(&median, layer.median), {&ninety, layer.ninety}}) {
                series->x.push_back(layer.layer);
                series->y.push_back(value);
            }
            for (const auto& [series, value] : {std::pair(&recall, layer.recall), {&mass, layer.mass}}) {
                if (!value) continue;
                series->x.push_back(layer.layer);
                series->y.push_back(*value);
            }
        }
        distance.series.push_back(std::move(median));
        distance.series.push_back(std::move(ninety));
        for (FigureSeries* series : {&recall, &mass})
            if (!series->x.empty()) share.series.push_back(std::move(*series));
        words.add(run, wordsOf(layers));
    }
    if (share.series.empty()) data.panels.pop_back();
    data.note =
        "Above: distance from the newest block to the blocks that a layer chose, over decode steps, sequences and KV "
        "heads; sink and window blocks are attended anyway and do not count. Below, where the run was recorded with "
        "the "
        "oracle: recall, the share of the best blocks (those of the most attention mass, as many as were chosen) that "
        "were chosen, and the attention mass that all selected blocks hold. " +
        (words.empty() ? std::string("Nothing was chosen here") : "Here " + words.words()) + ".";
    return data;
}

} // namespace

const FigureEntry kLookBackFigure{"look-back",
                                  "Look-back distance and recall by layer",
                                  "what trainers of indexers ask",
                                  "give traces recorded at level selections or full, of a method that selects blocks; "
                                  "with the oracle they have recall",
                                  lookBackRefusal,
                                  makeLookBack};

} // namespace kvscope::ui
