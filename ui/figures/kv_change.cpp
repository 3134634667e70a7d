// Figure: how the changes of queries, keys and values from one denoising forward to the next are spread over a block's
// tokens, beside each other: in one forward token by token, and on the mean over all of them.
#include "profiler/read/denoising.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>

namespace kvscope::ui {
namespace {

constexpr std::array kNames{"queries", "keys", "values"};

bool kvChangeDrawable(const reports::RunData& run) {
    return denoisingBlock(run.row) > 0 && !run.changeRanks.empty() && !run.keyRanks.empty() && !run.valueRanks.empty();
}

std::string kvChangeRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), kvChangeDrawable)) return {};
    return theRuns(sources) + ", and none holds how much the keys and values of a block's tokens changed";
}

const std::vector<ChangeRanks>& ranksOf(const reports::RunData& run, std::size_t what) {
    return what == 0 ? run.changeRanks : what == 1 ? run.keyRanks : run.valueRanks;
}

/// Shares of the block's change that its tokens have in the middle layer of one forward: the middle one of the block
/// with the most forwards.
void addForward(FigurePanel& panel, const reports::RunData& run) {
    const TraceReader reader(run.path);
    const std::optional<MiddleForward> forward = readMiddleForward(reader, run.row.runId);
    if (!forward) return;
    const std::array<const std::vector<float>*, 3> of{&forward->queries, &forward->keys, &forward->values};
    for (std::size_t what = 0; what < of.size(); ++what) {
        double whole = 0;
        for (const float change : *of[what]) whole += double(change);
        FigureSeries& series = panel.series.emplace_back();
        series.name = kNames[what];
        for (std::size_t i = 0; i < of[what]->size(); ++i) {
            series.x.push_back(double(i));
            series.y.push_back(whole > 0 ? 100 * double((*of[what])[i]) / whole : 0);
        }
    }
    panel.xTitle =
        fmt::format("Place in block {}, forward {}, layer {}", forward->block, forward->step + 1, forward->layer);
}

FigureData makeKvChange(const FigureSources& sources) {
    const auto run = std::find_if(sources.runs.begin(), sources.runs.end(), kvChangeDrawable);
    FigureData data;
    data.panels.resize(3);
    FigurePanel &places = data.panels[0], &ranks = data.panels[1], &halves = data.panels[2];
    places.yTitle = "Share of the change (%)";
    places.xTitle = "Place in the block";
    addForward(places, *run);
    ranks.xTitle = "Most changed tokens of the block";
    ranks.yTitle = "Share of the change (%)";
    ranks.yHigh = 103;
    halves.xTitle = "Layer";
    halves.yTitle = "Tokens with half of it";
    places.xTicks = {0, 4, 8, 12, 16, 24, 32, 48, 64};
    ranks.xTicks = {1, 4, 8, 12, 16, 24, 32, 48, 64};
    std::string words;
    for (std::size_t what = 0; what < kNames.size(); ++what) {
        const std::vector<ChangeRanks>& layers = ranksOf(*run, what);
        FigureSeries &share = ranks.series.emplace_back(), &half = halves.series.emplace_back();
        share.name = half.name = kNames[what];
        const int tokens = int(layers.front().share.size());
        double mean = 0;
        for (int rank = 1; rank <= tokens; ++rank) {
            double sum = 0;
            for (const ChangeRanks& layer : layers) sum += layer.cumulated(rank);
            share.x.push_back(rank);
            share.y.push_back(100 * sum / double(layers.size()));
        }
        for (const ChangeRanks& layer : layers) {
            half.x.push_back(layer.layer);
            half.y.push_back(layer.forHalf);
            mean += layer.forHalf / double(layers.size());
        }
        words += fmt::format("{}{:.1f} for {}", words.empty() ? "" : ", ", mean, kNames[what]);
    }
    data.note = fmt::format(
        "Mean square change of each token's queries, keys and values since the forward before, in {}. "
        "Above: one forward. Middle: the share that so many of the most changed tokens have together, mean "
        "over layers and over forwards that follow another one of their block. Below: how many tokens have half of it, "
        "on the mean {}. LoSA states that all three are local; it decides by the queries, because attention over the "
        "prefix depends on nothing else.",
        run->row.name, words);
    return data;
}

} // namespace

const FigureEntry kKvChangeFigure{
    "kv-change",
    "Change of queries, keys and values",
    "LoSA, Fig. 7",
    "give a trace recorded at level selections or full of a block-diffusion model with full attention "
    "(kvscope-cli run --model losa-tiny --method full --trace FILE)",
    kvChangeRefusal,
    makeKvChange};

} // namespace kvscope::ui
