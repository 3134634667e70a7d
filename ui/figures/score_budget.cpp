// Figure: score and throughput against the share of query-aware blocks in the budget.
#include "ui/figures/make_figures.h"

#include <cmath>
#include <set>

namespace kvscope::ui {
namespace {

/// A method without a query-aware part has no place in the figure.
std::vector<EvalPoint> withShare(const FigureSources& sources) {
    std::vector<EvalPoint> points;
    for (const EvalPoint& point : sources.evals)
        if (std::isfinite(point.share)) points.push_back(point);
    return points;
}

std::string scoreBudgetRefusal(const FigureSources& sources) {
    if (sources.evals.empty()) return "there are no scores here, traces have none";
    std::set<double> shares;
    for (const EvalPoint& point : withShare(sources)) shares.insert(point.share);
    if (shares.empty()) return "no method of the file has a query-aware part";
    return shares.size() >= 2 ? std::string() : "all scores have the same query-aware share of the budget";
}

FigureData makeScoreBudget(const FigureSources& sources) {
    SeriesByName scores, speeds;
    std::set<int> contexts;
    const std::vector<EvalPoint> points = withShare(sources);
    for (const EvalPoint& point : points) contexts.insert(point.context);
    for (const EvalPoint& point : points) {
        std::string name = methodTitle(point.method);
        if (contexts.size() > 1) name += ", " + std::to_string(point.context) + " tokens";
        scores.add(name, point.share, point.score);
        if (std::isfinite(point.tokensPerSecond)) speeds.add(name, point.share, point.tokensPerSecond, "measured");
    }
    FigureData data;
    data.panels.resize(1);
    data.panels[0].series = scores.take();
    data.panels[0].yTitle = points.front().scoreName;
    data.panels[0].yFromZero = false;
    if (auto series = speeds.take(); !series.empty()) {
        data.panels.emplace_back().series = std::move(series);
        data.panels[1].yTitle = "Tokens per second";
    }
    for (FigurePanel& panel : data.panels) panel.xTitle = "Query-aware share of the budget, k_q/k";
    data.note = "Mean score of the evaluation and measured decode throughput of each configuration.";
    return data;
}

} // namespace

const FigureEntry kScoreBudgetFigure{
    "score-budget",     "Score and throughput against k_q/k",
    "NOSA, Fig. 9",     "give a JSON document of kvscope-cli eval with at least two values of k_q/k",
    scoreBudgetRefusal, makeScoreBudget};

} // namespace kvscope::ui
