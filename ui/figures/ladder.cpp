// Figure: the capacity of every rung of SparseServe's ladder, simulated and as the engine served it.
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include "core/serve/rungs.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>

namespace kvscope::ui {
namespace {

/// The largest rate that holds, of each seed: the mean, the lowest and the highest.
struct Capacity {
    double mean = 0, low = 0, high = 0;
    std::size_t seeds = 0;
};

/// Nothing where there is a seed of which no rate holds.
std::optional<Capacity> capacityOf(const FigureSources& sources, const std::string& rung, bool measured) {
    std::map<int, double> bySeed;
    for (const ServedPoint& point : sources.served) {
        if (point.seed < 0 || point.series != rung || point.measured != measured) continue;
        double& held = bySeed[point.seed];
        if (point.holds) held = std::max(held, point.rate);
    }
    if (bySeed.empty()) return std::nullopt;
    Capacity capacity{0, bySeed.begin()->second, bySeed.begin()->second, bySeed.size()};
    for (const auto& [seed, rate] : bySeed) {
        if (rate <= 0) return std::nullopt;
        capacity.mean += rate / double(bySeed.size());
        capacity.low = std::min(capacity.low, rate), capacity.high = std::max(capacity.high, rate);
    }
    return capacity;
}

struct RungCapacity {
    std::string rung;
    Capacity capacity;
};
std::vector<RungCapacity> capacitiesOf(const FigureSources& sources, bool measured) {
    std::vector<RungCapacity> all;
    for (const serve::Rung& rung : serve::rungs())
        if (const std::optional<Capacity> capacity = capacityOf(sources, rung.name, measured))
            all.push_back({rung.name, *capacity});
    return all;
}

std::string ladderRefusal(const FigureSources& sources) {
    const std::size_t most = std::max(capacitiesOf(sources, false).size(), capacitiesOf(sources, true).size());
    if (most >= 2) return {};
    return most == 1 ? "of one rung alone a rate holds" : "there is no rung of a ladder of which a rate holds";
}

/// Whether the second rung is the one above the first, so that their capacities make a gain.
bool follows(const std::string& below, const std::string& above) {
    const auto& all = serve::rungs();
    const auto at = std::find_if(all.begin(), all.end(), [&](const serve::Rung& rung) { return rung.name == below; });
    return at != all.end() && at + 1 != all.end() && (at + 1)->name == above;
}

/// Adds a panel of bars. @return the gains in words, "+kernel x1.72"
std::string addRungs(FigureData& data, const std::vector<RungCapacity>& rungs, bool measured) {
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::StackedBars;
    panel.xTitle = measured ? "Largest rate that holds, measured (requests/s)" : "Capacity, simulated (requests/s)";
    FigureSeries& series = panel.series.emplace_back();
    series.name = measured ? "measured" : "simulated";
    series.basis = measured ? "measured" : "predicted";
    series.hollow = !measured;
    std::string gains;
    for (std::size_t i = 0; i < rungs.size(); ++i) {
        const Capacity& capacity = rungs[i].capacity;
        std::string name = rungs[i].rung;
        if (i > 0 && follows(rungs[i - 1].rung, name)) {
            name += fmt::format(" x{:.2f}", capacity.mean / rungs[i - 1].capacity.mean);
            gains += (gains.empty() ? "" : ", ") + name;
        }
        if (capacity.seeds > 1) name += fmt::format(" [{:.3g}, {:.3g}]", capacity.low, capacity.high);
        panel.names.push_back(std::move(name));
        series.x.push_back(capacity.mean), series.y.push_back(double(i));
    }
    return gains;
}

FigureData makeLadder(const FigureSources& sources) {
    FigureData data;
    std::string found;
    for (const bool measured : {false, true}) {
        const std::vector<RungCapacity> rungs = capacitiesOf(sources, measured);
        if (rungs.empty()) continue;
        const std::string gains = addRungs(data, rungs, measured);
        if (gains.empty()) continue;
        found += fmt::format("{}{} {}", found.empty() ? "" : "; ", measured ? "measured" : "simulated", gains);
    }
    data.note = fmt::format(
        "The largest rate of requests at which a server keeps its bounds, mean over seeds and in brackets the lowest "
        "and the highest. Each rung has one thing more than the one above it; x: over that one. Measured at few rates, "
        "such a rate is a lower bound. {}; +partition is ours. Here {}.",
        statedWords("ladder"), found.empty() ? "no two rungs follow each other" : found);
    return data;
}

} // namespace

const FigureEntry kLadderFigure{"ladder",
                                "Capacity rung by rung",
                                "SparseServe, Fig. 13",
                                "give the file of kvscope-cli load or simulate --search --rungs all --resume FILE",
                                ladderRefusal,
                                makeLadder};

} // namespace kvscope::ui
