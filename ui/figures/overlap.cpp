// Figure: the share of a step's selected blocks that at least one of the last w steps had selected too. A cache that
// holds the working set of w steps would not load these blocks again.
#include "profiler/replay/selection_trace.h"
#include "ui/figures/make_figures.h"

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kLongest = 64;

bool drawable(const reports::RunData& run) {
    return run.row.level != RecordLevel::Counters && run.summary.selected > 0 && run.steps.size() >= 3;
}

std::string refusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), drawable)) return {};
    return theRuns(sources) + ", and none holds the selected blocks of at least three decode steps";
}

/// Counts blocks of all requests except the first of each pool. at[distance - 1]: the blocks that were last requested
/// `distance` requests before.
struct Returns {
    std::vector<std::int64_t> at = std::vector<std::int64_t>(kLongest, 0);
    std::int64_t blocks = 0;
};

void addReturns(const BlockVisits& visits, std::size_t first, Returns& returns) {
    std::vector<std::int64_t> lastSeen(std::size_t(visits.blockLimit()), -1);
    for (std::size_t request = 0; request < visits.requests(); ++request) {
        for (const std::int32_t block : visits.left(request)) lastSeen[std::size_t(block)] = std::int64_t(request) - 1;
        if (request <= first) continue; // the first request has none before it
        const auto entered = visits.entered(request);
        returns.blocks += visits.size(request);
        returns.at[0] += visits.size(request) - std::int64_t(entered.size());
        for (const BlockVisits::Entry entry : entered) {
            const std::int64_t seen = lastSeen[std::size_t(entry.block())];
            if (seen < std::int64_t(first)) continue; // never requested, or only before `first`
            const std::int64_t distance = std::int64_t(request) - seen;
            if (distance <= kLongest) ++returns.at[std::size_t(distance) - 1];
        }
    }
}

FigureData make(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.xTitle = "Window w (decode steps)";
    panel.yTitle = "Overlap ratio";
    panel.yFromZero = false;
    panel.yHigh = 1;
    for (const reports::RunData& run : sources.runs) {
        if (!drawable(run)) continue;
        const SelectionTrace trace = loadSelectionTrace(TraceReader(run.path), run.row.runId);
        Returns returns;
        std::size_t longest = 0;
        for (const PoolTrace& pool : trace.pools) {
            std::size_t first = 0; // the first decode step; the requests before it are the prompt's
            while (first < pool.steps.size() && pool.steps[first] < 0) ++first;
            addReturns(pool.visits, first, returns);
            longest = std::max(longest, pool.visits.requests() - std::min(first, pool.visits.requests()));
        }
        if (returns.blocks == 0) continue;
        FigureSeries& series = panel.series.emplace_back();
        series.name = run.row.name;
        std::int64_t there = 0;
        for (int window = 1; window <= std::min<int>(kLongest, int(longest) - 1); ++window) {
            there += returns.at[std::size_t(window) - 1];
            series.x.push_back(window);
            series.y.push_back(double(there) / double(returns.blocks));
        }
    }
    data.note =
        "Share of the blocks of a step, over all sequences, layers and KV heads, that at least one of the w steps "
        "before had selected too. w = 1 is the locality, here with the steps that open a block.";
    return data;
}

} // namespace

const FigureEntry kOverlapFigure{"overlap",
                                 "Overlap ratio against window",
                                 "SparseServe, overlap of the working set",
                                 "give traces recorded at level selections or full, of a method that selects blocks",
                                 refusal,
                                 make};

} // namespace kvscope::ui
