// Figure: the share of the prefix that is read against the budget of a query, method by method, and how much less each
// method reads than Quest, beside the numbers of LoSA's table.
#include "profiler/read/denoising.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <vector>

namespace kvscope::ui {
namespace {

/// LoSA, Table 2: TraDo-8B on LongBench, blocks of 16 tokens.
struct StatedDensity {
    double budget, quest, losa; // tokens, %, %
};
constexpr std::array kStatedDensity{StatedDensity{128, 4.24, 2.58}, StatedDensity{256, 8.08, 5.04},
                                    StatedDensity{512, 14.78, 9.71}, StatedDensity{1024, 25.66, 18.23}};

double budgetOf(const reports::RunData& run) {
    return denoisingBlock(run.row) > 0 ? parameterOf(run, "budget") : std::nan("");
}

double densityOf(const reports::RunData& run) {
    if (!std::isfinite(budgetOf(run))) return std::nan("");
    const ActiveSets all = together(run.activeSets);
    return all.rows > 0 ? all.density : std::nan("");
}

std::string densityRefusal(const FigureSources& sources) {
    for (const reports::RunData& run : sources.runs)
        if (std::isfinite(densityOf(run))) return {};
    return theRuns(sources) + ", and in none does a block that is denoised choose pages within a budget";
}

/// Quest's density over that of each other series, where both have the budget.
std::vector<FigureSeries> ratiosToQuest(const std::vector<FigureSeries>& densities, const std::string& quest) {
    std::vector<FigureSeries> ratios;
    const auto base = std::find_if(densities.begin(), densities.end(), [&](const auto& s) { return s.name == quest; });
    if (base == densities.end()) return ratios;
    for (const FigureSeries& one : densities) {
        if (one.name == quest) continue;
        FigureSeries ratio;
        ratio.name = one.name;
        for (std::size_t i = 0; i < one.x.size(); ++i) {
            const auto there = std::find(base->x.begin(), base->x.end(), one.x[i]);
            if (there == base->x.end() || one.y[i] <= 0) continue;
            ratio.x.push_back(one.x[i]);
            ratio.y.push_back(base->y[std::size_t(there - base->x.begin())] / one.y[i]);
        }
        if (!ratio.x.empty()) ratios.push_back(std::move(ratio));
    }
    return ratios;
}

std::string densityName(const reports::RunData& run, const FigureSources& sources) {
    std::string name = groupName(run, sources);
    if (const double active = parameterOf(run, "active"); std::isfinite(active) && active != 5)
        name += fmt::format(", {:g} active", active);
    return name;
}

FigureData makeDensity(const FigureSources& sources) {
    std::map<std::string, std::map<double, std::vector<ActiveSets>>> sets; // of all runs with a name, by budget
    for (const reports::RunData& run : sources.runs) {
        if (!std::isfinite(densityOf(run))) continue;
        auto& same = sets[densityName(run, sources)][budgetOf(run)];
        same.insert(same.end(), run.activeSets.begin(), run.activeSets.end());
    }
    SeriesByName densities;
    std::string quest;
    for (const reports::RunData& run : sources.runs) {
        if (!std::isfinite(densityOf(run))) continue;
        const std::string name = densityName(run, sources);
        if (run.row.method == "quest") quest = name;
        densities.add(name, budgetOf(run), 100 * together(sets[name][budgetOf(run)]).density, "measured");
    }
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.yTitle = "KV of the prefix read (%)";
    panel.series = densities.take();
    FigurePanel ratios;
    ratios.yTitle = "Quest / this method";
    ratios.series = ratiosToQuest(panel.series, quest);
    FigureSeries statedQuest, statedLosa, statedRatio;
    statedQuest.name = "Quest, the paper";
    statedLosa.name = statedRatio.name = "LoSA, the paper";
    for (FigureSeries* one : {&statedQuest, &statedLosa, &statedRatio}) one->basis = "paper", one->hollow = true;
    for (const StatedDensity& row : kStatedDensity) {
        for (FigureSeries* one : {&statedQuest, &statedLosa, &statedRatio}) one->x.push_back(row.budget);
        statedQuest.y.push_back(row.quest);
        statedLosa.y.push_back(row.losa);
        statedRatio.y.push_back(row.quest / row.losa);
    }
    panel.series.push_back(std::move(statedQuest));
    panel.series.push_back(std::move(statedLosa));
    if (!ratios.series.empty()) {
        ratios.series.push_back(std::move(statedRatio));
        data.panels.push_back(std::move(ratios));
    }
    for (FigurePanel& one : data.panels) {
        one.xTitle = "Budget of a query (tokens)";
        one.xLog = true;
        one.xTicks = {16, 32, 64, 128, 256, 512, 1024, 2048};
    }
    data.note =
        "Tokens of the pages that are read, over those of the prefix: mean over forwards that chose pages, layers and "
        "KV heads of all runs with a name and a budget; LoSA with 5 active tokens unless it is named. A share depends "
        "on the length of the prefix, a ratio "
        "hardly does. Dashed: LoSA, Table 2, TraDo-8B on LongBench (Quest / LoSA 1.64, 1.60, 1.52, 1.41).";
    return data;
}

} // namespace

const FigureEntry kDensityFigure{
    "density",
    "KV of the prefix read against the budget",
    "LoSA, Table 2; SparseD's masks at the budgets of Table 6",
    "give traces of a block-diffusion model with losa, quest or sparsed (--set budget=...)",
    densityRefusal,
    makeDensity};

} // namespace kvscope::ui
