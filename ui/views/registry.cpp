#include "ui/frame/view.h"
#include "ui/views/make_views.h"

namespace kvscope::ui {

const std::vector<ViewEntry>& views() {
    // In the order of the tabs: what a run did, what limits it, and other runs and machines; then what only some runs
    // have.
    static const std::vector<ViewEntry> entries{
        {"locality", "Locality", "Ctrl+1",
         "Layer by step: how much of the last selection each step keeps, and other metrics", makeLocalityView},
        {"selection", "Selection", "Ctrl+2",
         "Block by step: which blocks one KV head selected, why, and which were missed", makeSelectionView},
        {"transfers", "Transfers", "Ctrl+3", "Hits, misses, bytes over the link and exposed time, step by step",
         makeTransfersView},
        {"breakdown", "Breakdown", "Ctrl+4", "Where the time of a step goes: stages per step, per layer and in total",
         makeBreakdownView},
        {"insights", "Insights", "Ctrl+I", "What stands out in the run, how much transfer is exposed, and what to try",
         makeInsightsView},
        {"waterfall", "Waterfall", "Ctrl+B",
         "Why not the roof: from the predicted step to the measured one, a bar for every loss", makeWaterfallView},
        {"compare", "Compare", "Ctrl+5",
         "Two or more runs against each other: verdict, differences by layer and step, breakdown, overlap, where they "
         "part",
         makeCompareView},
        {"cache", "What if", "Ctrl+6", "What another cache size, policy or link would have done to the recorded run",
         makeCacheView},
        {"roofline", "Roofline", "Ctrl+7",
         "Predicted decode throughput against batch, context and hit rate, what limits it, and the runs beside it",
         makeRooflineView, true},
        {"timeline", "Timeline", "Ctrl+8",
         "Every stage, kernel, copy and transfer over time, what waited for what, and the steps' numbers above them",
         makeTimelineView},
        {"denoising", "Denoising", "Ctrl+D",
         "Position by step of a block-diffusion run: what is masked, how sure the model is, what is written and which "
         "tokens are active",
         makeDenoisingView},
        {"serving", "Serving", "Ctrl+K",
         "Requests of a serving run as lanes: queued, read, decoding, paused; and what its iterations took",
         makeServingView},
        {"rates", "Rates", "Ctrl+H",
         "Arrivals against completions of a serving run, requests in the system, tokens and bytes a second",
         makeRatesView},
        {"slo", "SLO", "Ctrl+M",
         "Percentiles of times to the first token and between tokens of a serving run, and who kept the bounds",
         makeSloView},
        {"capacity", "Capacity", "Ctrl+U",
         "What another device memory, admission or load would have done to a serving run, by the simulator",
         makeCapacityView},
        {"ranks", "Ranks", "Ctrl+J",
         "Rank by step: which process of a run in several is late, and whether it misses more or waits", makeRanksView},
        {"runs", "Run Table", "Ctrl+Shift+R",
         "All open runs in a table: method, what differs, rates, bytes, memory, answers, tags and notes", makeRunsView},
        {"sql", "SQL", "Ctrl+9", "Your own questions to the trace: schema, queries, rows as a table or a plot",
         makeSqlView},
    };
    return entries;
}

} // namespace kvscope::ui
