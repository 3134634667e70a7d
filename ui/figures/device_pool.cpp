// Figure: hit rate against the size of one pool of slots for the whole device, with LRU and with Belady's choice,
// beside a fixed part for every sequence, layer and KV head. Steps go through the layers in a circle, so that LRU keeps
// nearly everything while what a step selects fits, and nearly nothing as soon as it does not.
#include "profiler/replay/device_pool.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace kvscope::ui {
namespace {

constexpr std::array kShares{0.25,   0.375, 0.5,    0.625, 0.75,  0.8125, 0.875, 0.9375, 1.0,
                             1.0625, 1.125, 1.1875, 1.25,  1.375, 1.5,    1.75,  2.0};

bool devicePoolDrawable(const reports::RunData& run) {
    return run.row.level != RecordLevel::Counters && run.summary.selected > 0 && run.steps.size() >= 3;
}

std::string devicePoolRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), devicePoolDrawable)) return {};
    return theRuns(sources) + ", and none holds the selected blocks of at least three decode steps";
}

double hitRateOf(const CacheCounts& counts) {
    const auto all = double(counts.hits + counts.misses);
    return all > 0 ? double(counts.hits) / all : 0;
}

/// Most pools of a sequence or request, layer and KV head that were asked in one step: with fixed parts each of them
/// has its own slots.
int mostPools(const SelectionTrace& trace) {
    std::map<std::int32_t, int> asked;
    for (const PoolTrace& pool : trace.pools)
        for (const std::int32_t step : pool.steps)
            if (step >= 0) ++asked[step];
    int most = 0;
    for (const auto& [step, pools] : asked) most = std::max(most, pools);
    return most;
}

FigureData makeDevicePool(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.xTitle = "Slots / blocks that a step selects";
    panel.yTitle = "Hit rate";
    panel.xFromZero = true;
    panel.yHigh = 1;
    const auto runs = std::count_if(sources.runs.begin(), sources.runs.end(), devicePoolDrawable);
    for (const reports::RunData& run : sources.runs) {
        if (!devicePoolDrawable(run)) continue;
        const SelectionTrace trace = loadSelectionTrace(TraceReader(run.path), run.row.runId);
        const DeviceRequests requests(trace);
        const DeviceDemand& demand = requests.demand();
        if (demand.meanStep <= 0) continue;
        const auto named = [&](const char* what) { return runs > 1 ? run.row.name + ", " + what : std::string(what); };
        for (const DevicePolicy policy : {DevicePolicy::Lru, DevicePolicy::Belady}) {
            FigureSeries& series = panel.series.emplace_back();
            series.name = named(policy == DevicePolicy::Lru ? "one pool, LRU" : "one pool, Belady");
            for (const double share : kShares) {
                const auto size = std::int64_t(share * demand.meanStep);
                if (size < demand.largest) continue;
                series.x.push_back(double(size) / demand.meanStep);
                series.y.push_back(hitRateOf(replayDevice(trace, requests, policy, size).total));
            }
        }
        FigureSeries& parts = panel.series.emplace_back();
        parts.name = named("fixed parts, LRU");
        const int pools = mostPools(trace);
        for (int size = trace.largest; size > 0 && double(size) * pools <= 2.5 * demand.meanStep; ++size) {
            parts.x.push_back(double(size) * pools / demand.meanStep);
            parts.y.push_back(hitRateOf(replayCache(trace, findReplayPolicy("lru"), size).total));
        }
        if (parts.x.empty()) panel.series.pop_back();
    }
    data.note =
        "Replayed from the recorded selections. Sizes are counted in the blocks that a mean step selects in all "
        "layers, without the newest block of each sequence, which lies outside the one pool and in a slot of "
        "its part. Fixed parts, one for each row, layer and KV head, begin where each of them holds a selection.";
    return data;
}

} // namespace

const FigureEntry kDevicePoolFigure{
    "device-pool",
    "Hit rate against the size of one pool for the device",
    "SparseServe, why loads explode with the batch",
    "give traces recorded at level selections or full, of a method that selects blocks, "
    "best of kvscope-cli load with many rows",
    devicePoolRefusal,
    makeDevicePool};

} // namespace kvscope::ui
