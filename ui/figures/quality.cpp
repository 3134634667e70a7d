// Figure: the share of needles that a block-diffusion model finds against the budget of a query, method by method, with
// intervals; a panel for each kind of prompts, and what share of the prefix is read below.
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <set>

namespace kvscope::ui {
namespace {

constexpr std::size_t kMostPanels = 4; // of needles

/// LoSA, Tables 2 and 6: the mean over LongBench of TraDo-8B, in blocks of 16 tokens.
struct StatedQuality {
    int budget;
    double quest, losa, sparsed;
};
constexpr std::array kStatedQuality{StatedQuality{128, 31.54, 41.97, 32.96}, StatedQuality{256, 34.64, 42.14, 39.10},
                                    StatedQuality{512, 36.70, 42.20, 41.74}, StatedQuality{1024, 37.69, 42.88, 42.91}};

std::string kindOf(const QualityPoint& point) {
    const std::string task = point.task == "passkey" ? "pass key" : point.task == "keys4" ? "4 keys" : "16 keys";
    return fmt::format("{}, {}K, {}", task, point.context / 1024, point.pace);
}

std::string qualityRefusal(const FigureSources& sources) {
    std::set<int> budgets;
    for (const QualityPoint& point : sources.quality)
        if (point.budget > 0) budgets.insert(point.budget);
    if (sources.quality.empty()) return "there are no answers here, traces have none";
    return budgets.empty() ? "no method of the file has a budget" : std::string();
}

void addTicks(FigurePanel& panel) {
    panel.xTitle = "Budget of a query (tokens)";
    panel.xLog = true;
    panel.xTicks = {16, 32, 64, 128, 256, 512, 1024, 2048};
}

/// The methods of one kind of prompts; full attention as a line over all budgets.
FigurePanel panelOf(const std::string& kind, const std::vector<QualityPoint>& points, int least, int most) {
    FigurePanel panel;
    panel.yTitle = "Answers right (%): " + kind;
    panel.yHigh = 103;
    addTicks(panel);
    for (const QualityPoint& point : points) {
        if (kindOf(point) != kind) continue;
        auto series = std::find_if(panel.series.begin(), panel.series.end(),
                                   [&](const FigureSeries& one) { return one.name == point.title; });
        if (series == panel.series.end()) {
            panel.series.emplace_back().name = point.title;
            series = panel.series.end() - 1;
        }
        series->hollow = point.budget == 0;
        for (const int budget : point.budget == 0 ? std::vector<int>{least, most} : std::vector<int>{point.budget}) {
            series->x.push_back(budget);
            series->y.push_back(100 * point.right);
            series->low.push_back(100 * point.low);
            series->high.push_back(100 * point.high);
        }
    }
    return panel;
}

FigureData makeQuality(const FigureSources& sources) {
    int least = 1 << 30, most = 0, fewest = 1 << 30;
    std::vector<std::string> kinds;
    SeriesByName densities;
    for (const QualityPoint& point : sources.quality) {
        fewest = std::min(fewest, point.prompts);
        if (std::find(kinds.begin(), kinds.end(), kindOf(point)) == kinds.end()) kinds.push_back(kindOf(point));
        if (point.budget == 0) continue;
        least = std::min(least, point.budget);
        most = std::max(most, point.budget);
        if (std::isfinite(point.density)) densities.add(point.title, point.budget, 100 * point.density, "measured");
    }
    std::vector<QualityPoint> points = sources.quality; // lines go from budget to budget
    std::stable_sort(points.begin(), points.end(),
                     [](const QualityPoint& a, const QualityPoint& b) { return a.budget < b.budget; });
    FigureData data;
    for (std::size_t i = 0; i < std::min(kinds.size(), kMostPanels); ++i)
        data.panels.push_back(panelOf(kinds[i], points, least, most));
    if (std::vector<FigureSeries> read = densities.take(); !read.empty()) {
        FigurePanel& panel = data.panels.emplace_back();
        panel.yTitle = "KV of the prefix read (%)";
        addTicks(panel);
        panel.series = std::move(read);
    }
    std::string stated;
    for (const StatedQuality& row : kStatedQuality)
        stated +=
            fmt::format("{}{}: {} / {} / {}", stated.empty() ? "" : "; ", row.budget, row.quest, row.losa, row.sparsed);
    data.note = fmt::format("Needles found with 95 % intervals by Wilson, at least {} prompts a cell; full attention "
                            "is the open line{}. Below: "
                            "tokens of the pages read over those of the prefix, mean over the kinds of prompts; "
                            "SparseD's is the union over a "
                            "KV head's query heads. LoSA states means over LongBench of TraDo-8B by budget, Quest / "
                            "LoSA / SparseD: {} (full "
                            "attention 44.86).",
                            fewest,
                            kinds.size() > kMostPanels
                                ? fmt::format("; {} more kinds are in the file", kinds.size() - kMostPanels)
                                : std::string(),
                            stated);
    return data;
}

} // namespace

const FigureEntry kQualityFigure{"quality",
                                 "Needles found against the budget",
                                 "LoSA, Tables 2 and 6, with SparseD at equal budgets",
                                 "give a JSON document of kvscope-cli quality --json",
                                 qualityRefusal,
                                 makeQuality};

} // namespace kvscope::ui
