#include "profiler/replay/hit_curves.h"

#include "base/error.h"
#include "profiler/replay/device_pool.h"
#include "profiler/replay/locality.h"
#include "profiler/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>

namespace kvscope {
namespace {

constexpr int kLeastSteps = 16;       // that select and are not cold
constexpr double kBin = 1.0 / 16;     // of the pool's curve
constexpr double kLargestRatio = 2.5; // of the pool's curve: beyond it nothing changes

/// The steps of a run as a device-wide pool sees them.
struct StepDemand {
    std::int64_t blocks = 0, newest = 0; // selected; of these, the newest blocks of sequences, which lie outside
};

Numbered<StepDemand> demandByStep(const SelectionTrace& trace, const DeviceRequests& requests) {
    Numbered<StepDemand> demand(trace.steps.count());
    for (std::size_t i = 0; i < requests.layers().size(); ++i) {
        const DeviceRequests::Layer& layer = requests.layers()[i];
        StepDemand& step = demand[layer.step];
        step.blocks += std::int64_t(requests.blocks(i).size()) + layer.newest;
        step.newest += layer.newest;
    }
    return demand;
}

/// The curve of a device-wide pool: points of (blocks that a step selects, divided by the pool's slots; share of them
/// that hit). It replays several sizes of the pool and puts every step into a bin by the step's own ratio, because in a
/// serving run the rows, and with them the blocks, change from step to step.
std::vector<std::pair<double, double>> poolCurve(const SelectionTrace& trace, const std::stop_token& stop) {
    const DeviceRequests requests(trace);
    const Numbered<StepDemand> demand = demandByStep(trace, requests);
    int counted = 0;
    for (std::size_t s = 0; s < demand.size(); ++s) counted += demand[s].blocks > 0 && !trace.steps[s].cold;
    if (counted < kLeastSteps)
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} has {} steps that select and are not cold, too few for a curve of hits",
                                trace.run.runId, counted),
                    fmt::format("record at least {}", kLeastSteps));
    struct Bin {
        double ratio = 0, selected = 0, missed = 0;
    };
    std::map<int, Bin> bins;
    for (const int slots : deviceSizes(requests.demand())) {
        const CacheReplay replayed = replayDevice(trace, requests, DevicePolicy::Lru, slots, stop);
        const Extents<int, int> cells = trace.layerSteps();
        for (int s = 0; s < demand.count(); ++s) {
            if (demand[s].blocks == 0 || trace.steps[s].cold) continue;
            std::int64_t loads = 0;
            for (const std::int32_t ofLayer : cells.part(std::span(replayed.loads), s)) loads += ofLayer;
            const double ratio = double(demand[s].blocks) / double(slots + demand[s].newest);
            if (ratio > kLargestRatio) continue;
            Bin& bin = bins[int(std::floor(ratio / kBin))];
            bin.ratio += ratio * double(demand[s].blocks);
            bin.selected += double(demand[s].blocks), bin.missed += double(loads);
        }
    }
    std::vector<std::pair<double, double>> curve;
    for (const auto& entry : bins) {
        const Bin& bin = entry.second;
        curve.emplace_back(bin.ratio / bin.selected, std::clamp(1 - bin.missed / bin.selected, 0.0, 1.0));
    }
    return curve;
}

/// The references of a pool's first request that counts, and how many of these blocks it loads: every cache begins
/// empty.
std::pair<std::int64_t, std::int64_t> firstLoads(const BlockVisits& visits) {
    for (std::size_t request = 0; request < visits.requests(); ++request) {
        if (visits.counted(request) == 0) continue;
        std::int64_t loads = 0;
        for (const BlockVisits::Entry& entry : visits.entered(request)) loads += entry.counted() && !entry.begins();
        return {visits.counted(request), loads};
    }
    return {0, 0};
}

std::vector<std::pair<double, double>> partitionCurve(const SelectionTrace& trace, const std::stop_token& stop) {
    const MissCurve curve = sum(missCurves(trace, CurvePolicy::Lru, 0, {}, stop));
    std::int64_t references = curve.references, first = 0;
    for (const PoolTrace& pool : trace.pools) {
        const auto [counted, loads] = firstLoads(pool.visits);
        references -= counted, first += loads;
    }
    std::vector<std::pair<double, double>> points;
    if (references <= 0) return points;
    int before = 0;
    for (const double share : {1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0}) {
        const int slots = std::max(curve.smallest, int(std::lround(share * trace.largest)));
        if (slots == before) continue;
        before = slots;
        const double misses = double(curve.at(slots) - first);
        points.emplace_back(double(slots) / trace.largest, std::clamp(1 - misses / double(references), 0.0, 1.0));
    }
    return points;
}

} // namespace

HitCurves hitCurvesOf(const SelectionTrace& trace, const std::stop_token& stop) {
    HitCurves curves;
    curves.pool = poolCurve(trace, stop);
    curves.partition = partitionCurve(trace, stop);
    LocalityProfile profile;
    for (const LocalityProfile& each : localityProfiles(trace, 1, 0, {}, stop)) profile += each;
    if (profile.compared.empty() || profile.compared.front() == 0) return curves; // no two steps follow each other
    curves.drift = 1 - profile.kept(1);
    return curves;
}

} // namespace kvscope
