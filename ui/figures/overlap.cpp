// Figure: the share of a step's selected blocks that at least one of the last w steps had selected too, and how many
// blocks these w steps select together. A cache that holds this working set would not load those blocks again.
#include "profiler/read/window_overlap.h"
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

bool overlapDrawable(const reports::RunData& run) {
    return run.row.level != RecordLevel::Counters && run.summary.selected > 0 && run.steps.size() >= 3;
}

std::string overlapRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), overlapDrawable)) return {};
    return theRuns(sources) + ", and none holds the selected blocks of at least three decode steps";
}

FigureData makeOverlap(const FigureSources& sources) {
    FigureData data;
    data.panels.resize(2);
    FigurePanel &overlap = data.panels[0], &held = data.panels[1];
    overlap.xTitle = held.xTitle = "Window w (decode steps)";
    overlap.yTitle = "Overlap ratio";
    held.yTitle = "Working set / selection";
    overlap.yFromZero = false;
    overlap.yHigh = 1;
    ByRun gains;
    for (const reports::RunData& run : sources.runs) {
        if (!overlapDrawable(run)) continue;
        const WindowOverlap sums = readWindowOverlap(TraceReader(run.path), run.row.runId);
        if (sums.blocks == 0) continue;
        FigureSeries &found = overlap.series.emplace_back(), &union_ = held.series.emplace_back();
        found.name = union_.name = run.row.name;
        const int windows = int(sums.windows.size());
        for (int w = 1; w <= windows; ++w) {
            union_.x.push_back(w);
            union_.y.push_back(sums.workingSet(w));
            if (w == windows && windows < kLongestWindow) break; // no step has so many steps before it
            found.x.push_back(w);
            found.y.push_back(sums.overlap(w));
        }
        const auto points = [&](int from, int to) { return 100 * (sums.overlap(to) - sums.overlap(from)); };
        if (windows > 16)
            gains.add(run, fmt::format("{:.2f} and {:.2f}", points(1, 12), points(12, 16)));
        else if (windows > 12)
            gains.add(run, fmt::format("{:.2f}", points(1, 12)));
    }
    data.note =
        "Above: share of the blocks of a step, over all sequences or requests, layers and KV heads, that at least one "
        "of the w steps before had selected too. w = 1 is the locality, here with the steps that open a block. Below: "
        "the blocks that w steps select together, over those of the last one. Steps that selected nothing do not "
        "count. " +
        statedWords("overlap") + "; " +
        (gains.empty() ? std::string("no run here has 13 steps to compare") : "here " + gains.words()) + ".";
    return data;
}

} // namespace

const FigureEntry kOverlapFigure{"overlap",
                                 "Overlap ratio and working set against window",
                                 "SparseServe, Fig. 8",
                                 "give traces recorded at level selections or full, of a method that selects blocks",
                                 overlapRefusal,
                                 makeOverlap};

} // namespace kvscope::ui
