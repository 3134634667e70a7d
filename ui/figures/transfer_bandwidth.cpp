// Figure: the bandwidth of the link against the size of a block, and against locality, which decides how many blocks
// one transfer moves.
#include "profiler/read/open_trace.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

const reports::TransferTotals* loadsOf(const reports::RunData& run) {
    for (const reports::TransferTotals& totals : run.transfers)
        if (totals.phase == Phase::Decode && totals.toDevice && totals.durationNs > 0) return &totals;
    return nullptr;
}

double loadedBlockBytes(const reports::RunData& run) {
    return loadsOf(run) != nullptr ? double(run.row.blockBytes) : std::nan("");
}

std::string transferBandwidthRefusal(const FigureSources& sources) {
    const auto sizes = distinct(sources, loadedBlockBytes);
    if (sizes.size() >= 2) return {};
    if (sizes.empty()) return theRuns(sources) + ", and none loaded blocks while decoding";
    return fmt::format("every run that loaded blocks has blocks of {:.3g} KiB", sizes[0] / 1024);
}

/// Adds a run's series to the lower panel: the loads of each layer and step are grouped by locality in steps of 0.05,
/// and a group's bandwidth is its bytes divided by the time the link was busy.
void addByLocality(FigurePanel& panel, const reports::RunData& run, const std::string& name) {
    OpenTrace trace = openTrace(run.path);
    Statement rows(*trace.connection,
                   "SELECT round(20.0 * kept / selected) / 20.0 AS locality, sum(h2d_bytes), sum(h2d_ns) FROM v_layer"
                   " WHERE run_id = ? AND phase = 'decode' AND kept IS NOT NULL AND selected > 0 AND h2d_bytes > 0"
                   " GROUP BY 1 HAVING sum(h2d_ns) > 0 ORDER BY 1");
    rows.bindAll(run.row.runId);
    FigureSeries series;
    series.name = name;
    series.basis = run.row.timing.text();
    series.hollow = run.row.timing != Timing::Measured;
    while (rows.step()) {
        series.x.push_back(rows.real(0));
        series.y.push_back(rows.real(1) / rows.real(2));
    }
    if (!series.x.empty()) panel.series.push_back(std::move(series));
}

FigureData makeTransferBandwidth(const FigureSources& sources) {
    FigureData data;
    data.panels.resize(2);
    FigurePanel &bySize = data.panels[0], &byLocality = data.panels[1];
    bySize.xTitle = "KV block (KiB)";
    bySize.xLog = true;
    byLocality.xTitle = "Locality γ of a layer in a step";
    bySize.yTitle = byLocality.yTitle = "Host to device (GB/s)";
    byLocality.mark = FigurePanel::Mark::Lines;
    for (const Timing timing : {Timing::Measured, Timing::Modelled}) {
        FigureSeries series;
        series.name = fmt::format("all decode steps, {}", nameOf(timing));
        series.basis = nameOf(timing);
        series.hollow = timing != Timing::Measured;
        for (const double size : distinct(sources, loadedBlockBytes)) {
            double bytes = 0, ns = 0;
            for (const reports::RunData& run : sources.runs)
                if (run.row.timing == timing && loadedBlockBytes(run) == size) {
                    bytes += double(loadsOf(run)->bytes);
                    ns += double(loadsOf(run)->durationNs);
                }
            if (ns <= 0) continue;
            series.x.push_back(size / 1024);
            series.y.push_back(bytes / ns);
        }
        if (!series.x.empty()) bySize.series.push_back(std::move(series));
    }
    for (const double size : distinct(sources, loadedBlockBytes)) bySize.xTicks.push_back(size / 1024);
    for (const reports::RunData& run : sources.runs)
        if (loadsOf(run) != nullptr)
            addByLocality(byLocality, run,
                          fmt::format("{}, {:.3g} KiB, {}", groupName(run, sources), double(run.row.blockBytes) / 1024,
                                      run.row.timing.text()));
    std::string found;
    for (const FigureSeries& series : bySize.series)
        found += fmt::format("{}{:.3g} to {:.3g} GB/s {}", found.empty() ? "" : " and ",
                             *std::min_element(series.y.begin(), series.y.end()),
                             *std::max_element(series.y.begin(), series.y.end()), series.basis);
    data.note = fmt::format(
        "Bytes loaded over the time the link was busy. Below: transfers of one layer in one step, put together by "
        "locality in steps of 0.05. Open marks: the link's time is modelled from bandwidth and latency. SparseServe, "
        "Fig. 4, states more than 20 GB/s for blocks of 4 to 32 tokens with one kernel, and less than 5 with a copy "
        "call for each block; here {}.",
        found);
    return data;
}

} // namespace

const FigureEntry kTransferBandwidthFigure{"transfer-bandwidth",
                                           "Transfer bandwidth against block size and locality",
                                           "NOSA, Fig. 5 and 8a; SparseServe, Fig. 4",
                                           "give traces of runs with at least two block sizes (--set block_size=...) "
                                           "that loaded blocks",
                                           transferBandwidthRefusal,
                                           makeTransferBandwidth};

} // namespace kvscope::ui
