// Declares the figures for registry.cpp and the functions that several figures share.
#pragma once

#include "ui/figures/figure.h"

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::ui {

extern const FigureEntry kLocalityFigure, kThroughputHitRateFigure, kTransferBandwidthFigure, kScoreBudgetFigure,
    kLayerBreakdownFigure, kBatchFigure, kOverlapFigure, kAttentionContextFigure, kDevicePoolFigure, kQueryChangeFigure,
    kTokenChangeFigure, kKvChangeFigure, kDenoiseBreakdownFigure, kQualityFigure, kActiveSetFigure, kDensityFigure,
    kRequestRateFigure, kLoadingFigure, kPromptStoresFigure, kPromptChunksFigure, kLayerReuseFigure, kLookBackFigure,
    kAnswerBytesFigure, kLadderFigure;

/// "LoSA" for "losa"; the name itself where this program has no such method.
std::string methodTitle(const std::string& method);
/// Name of a run's group: the title of its method, and also its backend if the runs have different backends.
std::string groupName(const reports::RunData& run, const FigureSources& sources);
/// The different finite values that `value` has among the runs, ascending.
std::vector<double> distinct(const FigureSources& sources, const std::function<double(const reports::RunData&)>& value);
/// Tokens per second of the decode steps that rates count, as measured.
double tokensPerSecond(const reports::RunData& run);
/// hits / (hits + misses) of those steps; NaN without selections.
double hitRate(const reports::RunData& run);
/// What the rates and means of a figure count: "cold ones left out" or "cold ones too".
const char* coldWords();
/// By which time tokens are divided, and how much slower a run was by the clock where that is much slower.
std::string throughputWords(const FigureSources& sources);
/// The beginning of a refusal: "there are no traces here", "there is one run" or "there are 3 runs".
std::string theRuns(const FigureSources& sources);

/// The longest window of the figure `overlap`.
constexpr int kLongestWindow = 64;

/// Words about several runs for a caption: "nosa 3.1; quest 4.5; 2 other runs are in the table of --csv".
class ByRun {
public:
    void add(const reports::RunData& run, const std::string& words) { runs_.emplace_back(run.row.name, words); }
    bool empty() const { return runs_.empty(); }
    std::string words() const;

private:
    std::vector<std::pair<std::string, std::string>> runs_;
};

/// A number among the parameters of a run's method; NaN: it has none of that name.
double parameterOf(const reports::RunData& run, const char* name);

/// A unit of time and its nanoseconds. timeUnit chooses the largest one in which `largestNs` is 1 or more.
struct TimeUnit {
    double ns = 1;
    const char* name = "ns";
};
TimeUnit timeUnit(double largestNs);

/// A server's runs that share what decides how prompts are read.
struct PromptReading {
    std::string name;      // in words
    ServerKnobs knobs;     // of the first run
    double nsPerToken = 0; // mean over the runs
    std::vector<const reports::RunData*> runs;
};
/// The served runs whose prompts' times are known, in groups of one configuration, in the order of the runs.
std::vector<PromptReading> promptReadings(const FigureSources& sources);

/// The decode steps of a server's runs that share a configuration, by the number of rows.
struct ServedSteps {
    std::string name;           // in words
    ServerKnobs knobs;          // of the first run
    const reports::RunData* of; // the first run
    std::vector<RowsLoad> byRows;
};
/// The decode steps of all served runs, in groups of one configuration and one size of blocks, in the order of the
/// runs.
std::vector<ServedSteps> servedSteps(const FigureSources& sources);
/// Whether the run served requests. The number of rows of its steps changes from step to step.
bool isServed(const reports::RunData& run);
/// Steps of a server that loads blocks, beside steps of a server of the same model and method that has everything on
/// the device, at equal numbers of rows. The difference is the time that loading takes.
struct LoadingBeside {
    const ServedSteps* server = nullptr;
    StepsBeside steps;
};
/// One for every server that loads blocks and whose method also has a run with everything on the device.
std::vector<LoadingBeside> loadingBeside(const std::vector<ServedSteps>& servers);
/// How missing blocks came to the device: "a copy call for each block"; empty: the run does not say.
std::string loadingWay(const ServerKnobs& knobs);

/// Collects the points of several series. A series lists its points in the order of x and has the mean of the points
/// that share an x.
class SeriesByName {
public:
    void add(const std::string& name, double x, double y, const std::string& basis = {}, bool hollow = false);
    /// The series in the order in which their names were first added.
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
