// Figure: the share of the prefix that a KV head reads against how many tokens of the block choose pages, with Quest,
// in which all of them do, as a line.
#include "profiler/read/denoising.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <set>

namespace kvscope::ui {
namespace {

constexpr const char* kQuest = "quest";

/// What the forwards of a run chose; empty for methods whose tokens do not choose pages one by one.
std::vector<ActiveSets> setsOf(const reports::RunData& run) {
    const bool choose = run.row.method == "losa" || run.row.method == kQuest;
    return choose && denoisingBlock(run.row) > 0 ? run.activeSets : std::vector<ActiveSets>();
}

std::string activeSetRefusal(const FigureSources& sources) {
    std::set<int> sizes;
    for (const reports::RunData& run : sources.runs)
        for (const ActiveSets& set : setsOf(run)) sizes.insert(set.active);
    if (sizes.size() >= 2) return {};
    if (sizes.empty()) return theRuns(sources) + ", and in none do the tokens of a block choose pages";
    return fmt::format("every run has active sets of {} token{}", *sizes.begin(), *sizes.begin() == 1 ? "" : "s");
}

/// Runs with the same pages to choose from share a series: those of one method, budget and length of the context, which
/// is named only where the runs have different ones.
std::string seriesName(const reports::RunData& run, const FigureSources& sources) {
    std::string name = groupName(run, sources);
    if (const double budget = parameterOf(run, "budget"); std::isfinite(budget))
        name += fmt::format(", {:g} tokens a query", budget);
    double shortest = run.meanContext(), longest = shortest;
    for (const reports::RunData& other : sources.runs) {
        if (setsOf(other).empty()) continue;
        shortest = std::min(shortest, other.meanContext());
        longest = std::max(longest, other.meanContext());
    }
    if (longest > 1.1 * shortest) name += fmt::format(", of {:.2g}K", run.meanContext() / 1024);
    return name;
}

FigureData makeActiveSet(const FigureSources& sources) {
    std::map<std::string, std::vector<ActiveSets>> quests;
    std::map<std::string, std::map<int, std::vector<ActiveSets>>> others; // of all runs with a name, by size
    double largest = 1;
    for (const reports::RunData& run : sources.runs)
        for (const ActiveSets& set : setsOf(run)) {
            largest = std::max(largest, double(set.active));
            if (run.row.method == kQuest)
                quests[seriesName(run, sources)].push_back(set);
            else
                others[seriesName(run, sources)][set.active].push_back(set);
        }
    SeriesByName sizes;
    for (const reports::RunData& run : sources.runs) {
        if (run.row.method == kQuest || setsOf(run).empty()) continue;
        const std::string name = seriesName(run, sources);
        for (const auto& [active, sets] : others[name]) sizes.add(name, active, 100 * together(sets).density);
    }
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.xTitle = "Tokens of the active set";
    panel.yTitle = "KV of the prefix read (%)";
    panel.xTicks = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64};
    panel.series = sizes.take();
    for (const auto& [name, sets] : quests) {
        FigureSeries& line = panel.series.emplace_back();
        line.name = name;
        line.hollow = true;
        line.x = {1, largest};
        line.y.assign(2, 100 * together(sets).density);
    }
    data.note =
        "Tokens of the pages that any active token chose, over the tokens of the prefix: mean over the forwards, "
        "layers and KV heads of all runs with active sets of that size. Dense forwards do not count. The dashed line "
        "is Quest, in "
        "which every token of the block chooses. LoSA states that Quest loads about twice its pages at 64K.";
    return data;
}

} // namespace

const FigureEntry kActiveSetFigure{
    "active-set",
    "KV read against the size of the active set",
    "LoSA, Fig. 3",
    "give traces of a block-diffusion model with losa at several sizes (--set active=1, 2, 5, 8, ... or "
    "--set active_threshold=...), and one with quest at the same budget",
    activeSetRefusal,
    makeActiveSet};

} // namespace kvscope::ui
