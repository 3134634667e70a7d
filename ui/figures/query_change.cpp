// Figure: how much the queries of a block's tokens change from one denoising forward to the next, token by token in one
// block, and by how long ago a token was written. Few tokens change much, and mostly those that were just written.
#include "profiler/read/denoising.h"
#include "profiler/read/token_changes.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

bool queryChangeDrawable(const reports::RunData& run) {
    return !denoisesCanvas(run.row) && denoisingBlock(run.row) > 0 && run.row.level != RecordLevel::Counters &&
           !run.changeRanks.empty();
}

std::string queryChangeRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), queryChangeDrawable)) return {};
    return theRuns(sources) + ", and none holds how much the queries of a block's tokens changed";
}

/// Adds the second, a middle and the last forward that denoises of the block with the most forwards.
void addBlock(FigurePanel& panel, const reports::RunData& run) {
    DenoiseRequest request;
    request.runId = run.row.runId;
    const ForwardRows forwards = readForwards(TraceReader(run.path), request, 0, std::max(run.row.steps - 1, 0));
    std::vector<const ForwardRow*> longest, block;
    for (const ForwardRow& row : forwards.rows) {
        if (!block.empty() && block.back()->block != row.block) block.clear();
        if (!row.final) block.push_back(&row);
        if (block.size() > longest.size()) longest = block;
    }
    std::vector<std::size_t> shown{1, longest.size() / 2, longest.size() - 1};
    shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
    for (const std::size_t forward : shown) {
        if (forward < 1 || forward >= longest.size()) continue;
        FigureSeries series;
        series.name = fmt::format("forward {} of block {}", forward + 1, longest[forward]->block);
        const auto cells = forwards.cellsOf(*longest[forward]);
        for (std::size_t i = 0; i < cells.size(); ++i) {
            series.x.push_back(double(i));
            series.y.push_back(double(cells[i].change));
        }
        panel.series.push_back(std::move(series));
    }
}

FigureData makeQueryChange(const FigureSources& sources) {
    FigureData data;
    data.panels.resize(2);
    FigurePanel &places = data.panels[0], &ages = data.panels[1];
    places.xTitle = "Place in the block";
    ages.xTitle = "Forwards since the token was written (0: a mask)";
    places.yTitle = ages.yTitle = "Change of queries";
    places.xTicks = ages.xTicks = {0, 4, 8, 12, 16, 24, 32, 48, 64};
    std::string shown;
    for (const reports::RunData& run : sources.runs) {
        if (!queryChangeDrawable(run)) continue;
        if (shown.empty()) {
            shown = run.row.name;
            addBlock(places, run);
        }
        FigureSeries& series = ages.series.emplace_back();
        series.name = run.row.name;
        for (const ChangeByAge& age : readChangeByAge(TraceReader(run.path), run.row.runId)) {
            series.x.push_back(age.age);
            series.y.push_back(age.mean);
        }
    }
    data.note = fmt::format(
        "Change: mean square difference of a token's queries to those of the forward before, mean over layers and "
        "heads. Above: the block of {} with the most forwards. Below: mean over all blocks; 1 is the first forward "
        "that reads the token in place of its mask. LoSA states that the tokens written in the step before change "
        "most. Keys and values beside them: figure kv-change, of runs with full attention.",
        shown);
    return data;
}

} // namespace

const FigureEntry kQueryChangeFigure{
    "query-change",
    "Change of queries between denoising forwards",
    "LoSA, Fig. 2",
    "give traces recorded at level selections or full of a block-diffusion model with losa or quest "
    "(kvscope-cli run --model losa-tiny --method losa --trace FILE)",
    queryChangeRefusal,
    makeQueryChange};

} // namespace kvscope::ui
