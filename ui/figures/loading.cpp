// Figure: how much of a decode step waits for blocks to be loaded, run by run.
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

bool loadingDrawable(const reports::RunData& run) {
    return !run.steps.empty() && run.row.knows.has(Known::ExposedTimes) && run.summary.missesPerStep > 0;
}

std::string loadingRefusal(const FigureSources& sources) {
    if (std::any_of(sources.runs.begin(), sources.runs.end(), loadingDrawable)) return {};
    const std::vector<ServedSteps> servers = servedSteps(sources);
    if (!loadingBeside(servers).empty()) return {};
    if (std::any_of(servers.begin(), servers.end(), [](const ServedSteps& server) { return server.knobs.offload; }))
        return "no server beside those that load had everything on the device and steps with as many rows";
    return theRuns(sources) + ", and none knows how long its decode steps waited for blocks";
}

/// How blocks came to the device, as the trace names it.
std::string mechanismOf(const reports::RunData& run) {
    for (const TransferRow& row : TraceReader(run.path).transfers(run.row.runId, run.steps.front().step))
        if (row.toDevice && row.blocks > 0) return row.mechanism;
    return "no transfer";
}

FigureData makeLoading(const FigureSources& sources) {
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::StackedBars;
    FigureSeries other, measured, modelled;
    other.name = "Other";
    other.basis = "measured";
    measured.name = "Loading";
    measured.basis = "measured";
    modelled.name = "Loading, modelled";
    modelled.basis = "modelled";
    modelled.hollow = true;
    double longest = 0;
    for (const reports::RunData& run : sources.runs)
        if (loadingDrawable(run))
            longest = std::max(longest, 1e6 * (run.summary.stepMs + run.summary.exposedMsPerStep));
    const std::vector<ServedSteps> servers = servedSteps(sources);
    const std::vector<LoadingBeside> beside = loadingBeside(servers);
    for (const LoadingBeside& one : beside) longest = std::max(longest, one.steps.loadingNs / one.steps.steps);
    const TimeUnit unit = timeUnit(longest);
    panel.xTitle = fmt::format("Wall time of a decode step ({})", unit.name);
    ByRun shares;
    for (const reports::RunData& run : sources.runs) {
        if (!loadingDrawable(run)) continue;
        const bool isModelled = run.row.timing == Timing::Modelled;
        const double exposed = 1e6 * run.summary.exposedMsPerStep / unit.ns, step = 1e6 * run.summary.stepMs / unit.ns;
        const double y = double(panel.names.size());
        panel.names.push_back(fmt::format("{}, batch {}", run.row.name, run.row.sequences));
        for (FigureSeries* series : {&other, &measured, &modelled}) series->y.push_back(y);
        // a measured wait is a part of the measured step, a modelled one comes on top
        other.x.push_back(isModelled ? step : std::max(step - exposed, 0.0));
        measured.x.push_back(isModelled ? 0 : exposed);
        modelled.x.push_back(isModelled ? exposed : 0);
        const double whole = isModelled ? step + exposed : step;
        shares.add(run, fmt::format("{:.2f} % ({})", whole > 0 ? 100 * exposed / whole : 0.0, mechanismOf(run)));
    }
    std::string found = shares.words();
    for (const LoadingBeside& one : beside) {
        const StepsBeside& steps = one.steps;
        const double step = steps.loadingNs / steps.steps / unit.ns;
        const double loads = std::max(0.0, (steps.loadingNs - steps.residentNs) / steps.steps / unit.ns);
        const double y = double(panel.names.size());
        const std::string name = fmt::format("{}, {}, {:.1f} rows", one.server->name, loadingWay(one.server->knobs),
                                             steps.rows / steps.steps);
        panel.names.push_back(name);
        for (FigureSeries* series : {&other, &measured, &modelled}) series->y.push_back(y);
        other.x.push_back(step - loads), measured.x.push_back(loads), modelled.x.push_back(0);
        found += fmt::format("{}{} {:.2f} %", found.empty() ? "" : "; ", name, 100 * loads / step);
    }
    for (FigureSeries* series : {&other, &measured, &modelled})
        if (std::any_of(series->x.begin(), series->x.end(), [](double x) { return x > 0; }))
            panel.series.push_back(std::move(*series));
    data.note = fmt::format("Mean over decode steps, {}. Loading is the time in which a step waits for blocks; an open "
                            "bar is what a modelled link would add. ",
                            coldWords());
    if (!beside.empty())
        data.note +=
            "Of a server loading is what its decode steps take longer than those of the one with everything on "
            "the device, at equal numbers of rows, first steps of requests too. ";
    data.note += fmt::format("{}; here loading takes {}.", statedWords("loading"), found);
    return data;
}

} // namespace

const FigureEntry kLoadingFigure{"loading",
                                 "Share of a decode step that waits for blocks",
                                 "SparseServe, Fig. 14a",
                                 "give traces of runs that load blocks (--device-kv ...), e.g. of several batch sizes "
                                 "(--batch ...), or of servers with --knob transfers=calls|batched|kernel and one "
                                 "with --knob offload=false",
                                 loadingRefusal,
                                 makeLoading};

} // namespace kvscope::ui
