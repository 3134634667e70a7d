// Figure: throughput against hit rate, with a point for each run. A run with a modelled link has a second, open point
// that includes the link's exposed time.
#include "profiler/report/step_intervals.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

std::string throughputHitRateRefusal(const FigureSources& sources) {
    if (distinct(sources, hitRate).size() >= 2) return {};
    return theRuns(sources) + ", and not two of different hit rate";
}

FigureSeries& seriesNamed(FigurePanel& panel, const std::string& name) {
    for (FigureSeries& series : panel.series)
        if (series.name == name) return series;
    panel.series.emplace_back().name = name;
    return panel.series.back();
}

FigureData makeThroughputHitRate(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::Points;
    panel.xTitle = "Hit rate (%)";
    panel.yTitle = "Tokens per second";
    std::vector<const reports::RunData*> runs;
    for (const reports::RunData& run : sources.runs)
        if (hitRate(run) >= 0) runs.push_back(&run);
    std::stable_sort(runs.begin(), runs.end(), [](const auto* a, const auto* b) { return hitRate(*a) < hitRate(*b); });
    bool modelled = false;
    for (const reports::RunData* run : runs) {
        FigureSeries& series = seriesNamed(panel, groupName(*run, sources));
        const Interval interval = reports::tokensPerSecond(*run, reports::StepIntervals(*run));
        series.basis = "measured";
        series.x.push_back(100 * hitRate(*run));
        series.y.push_back(interval.value);
        series.low.push_back(interval.low);
        series.high.push_back(interval.high);
    }
    for (const reports::RunData* run : runs) {
        if (run->row.timing != Timing::Modelled) continue;
        FigureSeries& series = seriesNamed(panel, groupName(*run, sources) + ", with modelled link");
        series.basis = "predicted";
        series.hollow = true;
        series.x.push_back(100 * hitRate(*run));
        const RunSummary& s = run->summary;
        series.y.push_back(s.tokensPerSecond * s.stepMs / (s.stepMs + s.exposedMsPerStep));
        modelled = true;
    }
    data.note = fmt::format("Decode steps, {}; throughput is {}. Bars are 95 % intervals of a block bootstrap over "
                            "steps.",
                            coldWords(), throughputWords(sources));
    if (modelled)
        data.note += " Open marks are predicted: the measured step time plus the exposed time of the modelled link.";
    return data;
}

} // namespace

const FigureEntry kThroughputHitRateFigure{"throughput-hit-rate",
                                           "Throughput against hit rate",
                                           "NOSA, throughput against hit rate",
                                           "give traces of at least two runs whose hit rates differ, e.g. of other "
                                           "methods or cache sizes",
                                           throughputHitRateRefusal,
                                           makeThroughputHitRate};

} // namespace kvscope::ui
