// Figure: the bandwidth of the link against the size of a block, and against locality, which decides how many blocks
// one transfer moves.
#include "profiler/read/open_trace.h"
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

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

/// A server's loads: bytes over the time by which they make its steps longer.
struct ServedLoads {
    std::string way; // "a copy call for each block"
    double blockBytes = 0, bytes = 0, ns = 0;
};
std::vector<ServedLoads> servedLoads(const FigureSources& sources) {
    std::vector<ServedLoads> all;
    const std::vector<ServedSteps> servers = servedSteps(sources);
    for (const LoadingBeside& beside : loadingBeside(servers)) {
        const double ns = beside.steps.loadingNs - beside.steps.residentNs;
        const auto blockBytes = double(beside.server->of->row.blockBytes);
        if (ns <= 0 || beside.steps.bytes <= 0 || blockBytes <= 0) continue;
        const std::string way = loadingWay(beside.server->knobs);
        auto same = std::find_if(all.begin(), all.end(), [&](const ServedLoads& loads) {
            return loads.way == way && loads.blockBytes == blockBytes;
        });
        if (same == all.end()) same = all.insert(all.end(), {way, blockBytes, 0, 0});
        same->bytes += beside.steps.bytes, same->ns += ns;
    }
    return all;
}

/// The sizes of blocks, ascending, of runs and of servers.
std::vector<double> sizesOfBlocks(const FigureSources& sources, const std::vector<ServedLoads>& served) {
    std::vector<double> sizes = distinct(sources, loadedBlockBytes);
    for (const ServedLoads& loads : served) sizes.push_back(loads.blockBytes);
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
}

std::string transferBandwidthRefusal(const FigureSources& sources) {
    const std::vector<ServedLoads> served = servedLoads(sources);
    const std::vector<double> sizes = sizesOfBlocks(sources, served);
    const auto otherWay = [&](const ServedLoads& loads) { return loads.way != served.front().way; };
    if (sizes.size() >= 2 || std::any_of(served.begin(), served.end(), otherWay)) return {};
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
    const std::vector<ServedLoads> served = servedLoads(sources);
    SeriesByName ways;
    for (const ServedLoads& loads : served)
        ways.add(loads.way + ", beside a resident server", loads.blockBytes / 1024, loads.bytes / loads.ns, "measured");
    for (FigureSeries& series : ways.take()) bySize.series.push_back(std::move(series));
    for (const double size : sizesOfBlocks(sources, served)) bySize.xTicks.push_back(size / 1024);
    for (const reports::RunData& run : sources.runs)
        if (loadsOf(run) != nullptr)
            addByLocality(byLocality, run,
                          fmt::format("{}, {:.3g} KiB, {}", groupName(run, sources), double(run.row.blockBytes) / 1024,
                                      run.row.timing.text()));
    std::string found;
    for (const FigureSeries& series : bySize.series)
        found += fmt::format("{}{} {:.3g} to {:.3g} GB/s", found.empty() ? "" : "; ", series.name,
                             *std::min_element(series.y.begin(), series.y.end()),
                             *std::max_element(series.y.begin(), series.y.end()));
    data.note = "Bytes loaded over the time the link was busy. Open marks: the link's time is modelled from bandwidth "
                "and latency. ";
    if (byLocality.series.empty())
        data.panels.pop_back();
    else
        data.note += "Below: transfers of one layer in one step, put together by locality in steps of 0.05. ";
    if (!served.empty())
        data.note += "Of a server: bytes over the time by which its decode steps are longer than those of the one with "
                     "everything on the device, at equal numbers of rows; lookups are in that time. ";
    data.note += fmt::format("{}; here {}.", statedWords("transfer-bandwidth"), found);
    return data;
}

} // namespace

const FigureEntry kTransferBandwidthFigure{
    "transfer-bandwidth",
    "Transfer bandwidth against block size and locality",
    "NOSA, Fig. 5 and 8a; SparseServe, Fig. 4",
    "give traces of runs with at least two block sizes (--set block_size=...) "
    "that loaded blocks, or of servers with --knob transfers=calls and transfers=kernel and "
    "one with --knob offload=false",
    transferBandwidthRefusal,
    makeTransferBandwidth};

} // namespace kvscope::ui
