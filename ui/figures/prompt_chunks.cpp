// Figure: prompts in chunks beside prompts by layers: the time to the first token against the rate of requests, and the
// time of a prompt's token.
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

constexpr double kSameRate = 1.15; // rates of two runs that are compared differ by this factor at most

bool byLayers(const PromptReading& reading) { return reading.knobs.prefill == "layers"; }
bool inChunks(const PromptReading& reading) {
    return reading.knobs.prefill == "chunks" && reading.knobs.chunkTokens > 0;
}

std::string promptChunksRefusal(const FigureSources& sources) {
    const std::vector<PromptReading> readings = promptReadings(sources);
    const bool layers = std::any_of(readings.begin(), readings.end(), byLayers),
               chunks = std::any_of(readings.begin(), readings.end(), inChunks);
    if (layers && chunks) return {};
    if (!layers && !chunks) return theRuns(sources) + ", and in none a server read prompts in parts";
    return layers ? "all prompts were read by layers" : "all prompts were read in chunks";
}

/// By how much the time to the first token is longer in chunks than by layers, at the rate where that is most; 0: the
/// two have no rate in common. rate: takes that of the runs by layers
double mostOver(const PromptReading& chunks, const PromptReading& layers, double& rate) {
    double most = 0;
    for (const reports::RunData* chunked : chunks.runs)
        for (const reports::RunData* layered : layers.runs) {
            const ServedLoad &a = *chunked->served, &b = *layered->served;
            const bool same = std::max(a.rate, b.rate) <= kSameRate * std::min(a.rate, b.rate);
            if (!same || !(a.ttftMs > 0) || !(b.ttftMs > 0) || a.ttftMs / b.ttftMs <= most) continue;
            most = a.ttftMs / b.ttftMs, rate = b.rate;
        }
    return most;
}

FigureData makePromptChunks(const FigureSources& sources) {
    const std::vector<PromptReading> readings = promptReadings(sources);
    const PromptReading& layers = *std::find_if(readings.begin(), readings.end(), byLayers);
    FigureData data;
    data.panels.resize(2);
    FigurePanel &first = data.panels[0], &time = data.panels[1];
    first.xTitle = "Requests per second";
    first.yTitle = "TTFT, mean (ms)";
    first.xFromZero = true;
    time.mark = FigurePanel::Mark::StackedBars;
    time.xTitle = "Time of a prompt token over that by layers";
    SeriesByName series;
    FigureSeries bars;
    bars.name = "Reading prompts";
    bars.basis = "measured";
    std::string found;
    for (const PromptReading& reading : readings) {
        if (!byLayers(reading) && !inChunks(reading)) continue;
        for (const reports::RunData* run : reading.runs)
            if (std::isfinite(run->served->ttftMs))
                series.add(reading.name, run->served->rate, run->served->ttftMs, "measured");
        bars.y.push_back(double(time.names.size()));
        bars.x.push_back(reading.nsPerToken / layers.nsPerToken);
        time.names.push_back(reading.name);
        if (!inChunks(reading)) continue;
        double rate = 0;
        const double most = mostOver(reading, layers, rate);
        found += fmt::format("{}in chunks of {} a prompt token takes {:.2f}x as long", found.empty() ? "" : "; ",
                             reading.knobs.chunkTokens, bars.x.back());
        if (most > 0) found += fmt::format(" and TTFT is up to {:.2f}x (at {:.3g} requests/s)", most, rate);
    }
    first.series = series.take();
    time.series.push_back(std::move(bars));
    data.note = fmt::format(
        "A point is a run at one rate: requests that arrived after the first fifth of the time from the first to the "
        "last arrival; TTFT begins at the intended arrival. Below: time in which iterations read prompts, over the "
        "tokens of these prompts, for the whole run. {}; over \"{}\" here: {}.",
        statedWords("prompt-chunks"), layers.name, found);
    return data;
}

} // namespace

const FigureEntry kPromptChunksFigure{"prompt-chunks",
                                      "Prompts in chunks beside prompts by layers",
                                      "SparseServe, Fig. 16",
                                      "give traces of kvscope-cli load --trace FILE --rate 1,2,4 with --knob "
                                      "prefill=layers and with --knob prefill=chunks --knob chunk_tokens=512 "
                                      "(1024, 2048)",
                                      promptChunksRefusal,
                                      makePromptChunks};

} // namespace kvscope::ui
