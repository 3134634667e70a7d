// Figure: the tokens of a block in the order of how much their queries changed, layer by layer: what share of the
// block's change the most changed ones have together, and how many of them have half of it.
#include "profiler/read/denoising.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

bool tokenChangeDrawable(const reports::RunData& run) {
    return denoisingBlock(run.row) > 0 && !run.changeRanks.empty();
}

std::string tokenChangeRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), tokenChangeDrawable)) return {};
    return theRuns(sources) + ", and none holds how much the queries of a block's tokens changed";
}

/// Adds the first, the last and up to three layers between them.
void addLayers(FigurePanel& panel, const std::vector<ChangeRanks>& layers) {
    std::vector<std::size_t> shown;
    for (int part = 0; part <= 4; ++part) shown.push_back((layers.size() - 1) * std::size_t(part) / 4);
    shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
    std::size_t tokens = 0;
    for (const std::size_t at : shown) {
        const ChangeRanks& layer = layers[at];
        FigureSeries& series = panel.series.emplace_back();
        series.name = fmt::format("layer {}", layer.layer);
        tokens = std::max(tokens, layer.share.size());
        for (int rank = 1; rank <= int(layer.share.size()); ++rank) {
            series.x.push_back(rank);
            series.y.push_back(100 * layer.cumulated(rank));
        }
    }
    FigureSeries& half = panel.series.emplace_back();
    half.name = "50 %";
    half.hollow = true;
    half.x = {1, double(tokens)};
    half.y = {50, 50};
}

FigureData makeTokenChange(const FigureSources& sources) {
    FigureData data;
    data.panels.resize(2);
    FigurePanel &ranks = data.panels[0], &halves = data.panels[1];
    ranks.xTitle = "Most changed tokens of the block";
    ranks.yTitle = "Share of the change (%)";
    ranks.yHigh = 103;
    ranks.xTicks = {1, 4, 8, 12, 16, 24, 32, 48, 64};
    halves.xTitle = "Layer";
    halves.yTitle = "Tokens with half of it";
    std::string first;
    ByRun words;
    for (const reports::RunData& run : sources.runs) {
        if (!tokenChangeDrawable(run)) continue;
        const std::vector<ChangeRanks>& layers = run.changeRanks;
        if (first.empty()) {
            first = run.row.name;
            addLayers(ranks, layers);
        }
        FigureSeries& series = halves.series.emplace_back();
        series.name = run.row.name;
        for (const ChangeRanks& layer : layers) {
            series.x.push_back(layer.layer);
            series.y.push_back(layer.forHalf);
        }
        words.add(run, fmt::format("{:.1f} in its first layer, {:.1f} in the middle, {:.1f} in the last",
                                   layers.front().forHalf, layers[layers.size() / 2].forHalf, layers.back().forHalf));
    }
    data.note = fmt::format(
        "Tokens in the order of how much their queries changed since the forward before, the most changed one first. "
        "Above: the share of the block's change that so many of them have together, in layers of {}; below, how many "
        "have at least half. Means over forwards that follow another one of their block. LoSA states that early and "
        "late layers are more local than middle ones; here half of the change is in {} of a block's tokens.",
        first, words.words());
    return data;
}

} // namespace

const FigureEntry kTokenChangeFigure{"token-change",
                                     "Share of the change in the most changed tokens",
                                     "LoSA, Fig. 4 and 8 to 11",
                                     "give traces recorded at level selections or full of a block-diffusion model with "
                                     "losa or quest (kvscope-cli run --model losa-tiny --method losa --trace FILE)",
                                     tokenChangeRefusal,
                                     makeTokenChange};

} // namespace kvscope::ui
