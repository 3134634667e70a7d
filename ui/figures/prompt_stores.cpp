// Figure: the time in which prompts are read, by how their blocks go to the host, over the time without that.
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

/// How the blocks of these prompts went to the host, in words.
std::string storesOf(const ServerKnobs& knobs) {
    if (!knobs.offload) return "resident";
    if (knobs.d2h == "runs") return "a copy for each head";
    if (knobs.d2h == "calls") return "a copy for each block";
    if (knobs.d2h == "kernel") return "stores of a kernel";
    if (knobs.d2h == "bounce") return "one copy, threads scatter";
    return {};
}

std::vector<PromptReading> promptStoresDrawable(const FigureSources& sources) {
    std::vector<PromptReading> readings = promptReadings(sources);
    std::erase_if(readings, [](const PromptReading& reading) { return storesOf(reading.knobs).empty(); });
    return readings;
}

std::string promptStoresRefusal(const FigureSources& sources) {
    const std::vector<PromptReading> readings = promptStoresDrawable(sources);
    if (readings.empty()) return theRuns(sources) + ", and none says how a server brought prompts to the host";
    const auto other = [&](const PromptReading& reading) {
        return storesOf(reading.knobs) != storesOf(readings.front().knobs);
    };
    if (std::any_of(readings.begin(), readings.end(), other)) return {};
    return fmt::format("the prompts of all runs went to the host in one way ({})", storesOf(readings.front().knobs));
}

FigureData makePromptStores(const FigureSources& sources) {
    const std::vector<PromptReading> readings = promptStoresDrawable(sources);
    const auto resident = std::find_if(readings.begin(), readings.end(),
                                       [](const PromptReading& reading) { return !reading.knobs.offload; });
    const auto least =
        std::min_element(readings.begin(), readings.end(),
                         [](const PromptReading& a, const PromptReading& b) { return a.nsPerToken < b.nsPerToken; });
    const PromptReading& base = resident == readings.end() ? *least : *resident;
    FigureData data;
    FigurePanel& panel = data.panels.emplace_back();
    panel.mark = FigurePanel::Mark::StackedBars;
    panel.xTitle = resident == readings.end() ? "Time of a prompt token over the shortest"
                                              : "Time of a prompt token over that with everything resident";
    FigureSeries series;
    series.name = "Reading prompts";
    series.basis = "measured";
    std::string found;
    for (const PromptReading& reading : readings) {
        series.y.push_back(double(panel.names.size()));
        series.x.push_back(reading.nsPerToken / base.nsPerToken);
        panel.names.push_back(fmt::format("{} ({})", storesOf(reading.knobs), reading.name));
        found += fmt::format("{}{} {:.2f}x", found.empty() ? "" : ", ", storesOf(reading.knobs), series.x.back());
    }
    panel.series.push_back(std::move(series));
    data.note =
        fmt::format("Time in which iterations read prompts, over the tokens of these prompts; mean over the runs of a "
                    "configuration. {}; here {}.",
                    statedWords("prompt-stores"), found);
    return data;
}

} // namespace

const FigureEntry kPromptStoresFigure{"prompt-stores",
                                      "Time of prompts by the way of their blocks to the host",
                                      "SparseServe, Fig. 14b",
                                      "give traces of kvscope-cli load --backend cuda --trace FILE with different "
                                      "--knob d2h=..., best one with --knob offload=false too",
                                      promptStoresRefusal,
                                      makePromptStores};

} // namespace kvscope::ui
