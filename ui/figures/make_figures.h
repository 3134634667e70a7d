// The presets, for the registry, and what several of them need.
#pragma once

#include "ui/figures/figure.h"

#include <functional>
#include <map>

namespace kvscope::ui {

extern const FigureEntry kLocalityFigure, kThroughputHitRateFigure, kTransferBandwidthFigure, kScoreBudgetFigure,
    kLayerBreakdownFigure, kBatchFigure, kOverlapFigure, kAttentionContextFigure;

/// The method's title, and the backend where runs of several are drawn.
std::string groupName(const reports::RunData& run, const FigureSources& sources);
/// Different values among the runs, ascending.
std::vector<double> distinct(const FigureSources& sources, const std::function<double(const reports::RunData&)>& value);
/// Tokens per second of the decode steps that rates count, as measured.
double tokensPerSecond(const reports::RunData& run);
/// hits / (hits + misses) of those steps; NaN without selections.
double hitRate(const reports::RunData& run);
/// "no run of these traces", "the one run", "these 3 runs": subject of a refusal.
std::string theRuns(const FigureSources& sources);

/// A unit in which the largest of the nanoseconds reads as 1 or more.
struct TimeUnit {
    double ns = 1;
    const char* name = "ns";
};
TimeUnit timeUnit(double largestNs);

/// Points of one series, put in order of x; those of one x are averaged.
class SeriesByName {
public:
    void add(const std::string& name, double x, double y, const std::string& basis = {}, bool hollow = false);
    /// In the order in which the names came.
    std::vector<FigureSeries> take();

private:
    struct Sum {
        double y = 0;
        int count = 0;
    };
    struct Entry {
        std::string name, basis;
        bool hollow = false;
        std::map<double, Sum> points;
    };
    std::vector<Entry> entries_;
};

} // namespace kvscope::ui
