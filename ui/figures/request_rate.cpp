// Figure: time to the first token, throughput, time between tokens and bytes loaded against the rate of requests, a
// series for each configuration of the server.
#include "ui/figures/make_figures.h"
#include "ui/figures/stated_ratios.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::ui {
namespace {

/// A configuration of the server: what a series is named after.
std::string configurationOf(const reports::RunData& run, const FigureSources& sources) {
    const std::string words = serverWords(run.row);
    return groupName(run, sources) + (words.empty() ? "" : ", " + words);
}

std::vector<ServedPoint> pointsOf(const FigureSources& sources) {
    std::vector<ServedPoint> points;
    for (const reports::RunData& run : sources.runs) {
        if (!run.served) continue;
        const ServedLoad& load = *run.served;
        points.push_back({configurationOf(run, sources), true, load.rate, load.ttftMs, load.tbtMs, load.tbtP99Ms,
                          load.tokensPerSecond, load.bytesLoaded});
    }
    for (const ServedPoint& point : sources.served) {
        points.push_back(point);
        if (!point.measured) points.back().series += ", simulated";
    }
    return points;
}

std::string requestRateRefusal(const FigureSources& sources) {
    std::vector<double> rates;
    for (const ServedPoint& point : pointsOf(sources)) rates.push_back(point.rate);
    std::sort(rates.begin(), rates.end());
    if (rates.empty()) return theRuns(sources) + ", and none served requests";
    if (rates.back() > 1.001 * rates.front()) return {};
    return fmt::format("every run served {:.3g} requests a second", rates.front());
}

/// Adds a panel of one number. Configurations without it have no series there.
void addPanel(FigureData& data, const std::vector<ServedPoint>& points, const char* title, double unit,
              double ServedPoint::*number) {
    SeriesByName series;
    for (const ServedPoint& point : points)
        if (std::isfinite(point.*number))
            series.add(point.series, point.rate, point.*number / unit, point.measured ? "measured" : "predicted",
                       !point.measured);
    FigurePanel panel;
    panel.xTitle = "Requests per second";
    panel.yTitle = title;
    panel.xFromZero = true;
    panel.series = series.take();
    if (!panel.series.empty()) data.panels.push_back(std::move(panel));
}

/// How far the throughput of each series falls behind its maximum; empty where none has one inside.
std::string fallWords(const FigurePanel& throughput) {
    std::string words;
    for (const FigureSeries& series : throughput.series) {
        const auto best = std::max_element(series.y.begin(), series.y.end());
        const double fall = 100 * (1 - series.y.back() / *best);
        if (fall <= 0) continue;
        words += fmt::format("{}{} falls by {:.2f} % from {:.3g} to {:.3g} requests/s", words.empty() ? "" : ", ",
                             series.name, fall, series.x[std::size_t(best - series.y.begin())], series.x.back());
    }
    return words.empty() ? "no series falls behind its maximum" : words;
}

/// The extreme of a number of one series over that of another, at the rates that both have; NaN: they have none.
double extremeRatio(const FigureSeries& series, const FigureSeries& base, bool highest) {
    constexpr double kOneRate = 1.15; // rates that are compared differ by this factor at most
    double extreme = std::nan("");
    for (std::size_t i = 0; i < series.x.size(); ++i)
        for (std::size_t j = 0; j < base.x.size(); ++j) {
            if (std::max(series.x[i], base.x[j]) > kOneRate * std::min(series.x[i], base.x[j])) continue;
            const double ratio = series.y[i] / base.y[j];
            if (!std::isfinite(ratio)) continue;
            if (!std::isfinite(extreme) || (ratio > extreme) == highest) extreme = ratio;
        }
    return extreme;
}

/// The panels' numbers of every series over those of the first one at the rates that both have: "+kernel over +sparse:
/// TTFT down to 0.51x, ...". Empty: no two series have a rate in common.
std::string ratioWords(const FigureData& data) {
    struct Extreme {
        const char *title, *words;
        bool highest;
    };
    constexpr Extreme kExtremes[] = {{"TTFT, mean (ms)", "TTFT down to", false},
                                     {"Tokens per second", "throughput up to", true},
                                     {"TBT, mean (ms)", "TBT up to", true},
                                     {"Loaded an iteration (MB)", "bytes loaded down to", false}};
    std::vector<std::string> names;
    for (const FigurePanel& panel : data.panels)
        for (const FigureSeries& series : panel.series)
            if (std::find(names.begin(), names.end(), series.name) == names.end()) names.push_back(series.name);
    std::string words;
    int told = 0, more = 0;
    for (std::size_t i = 1; i < names.size(); ++i) {
        std::string ratios;
        for (const Extreme& one : kExtremes)
            for (const FigurePanel& panel : data.panels) {
                if (panel.yTitle != one.title) continue;
                const auto named = [&](const std::string& name) {
                    return std::ranges::find(panel.series, name, &FigureSeries::name);
                };
                const auto series = named(names[i]), base = named(names[0]);
                if (series == panel.series.end() || base == panel.series.end()) continue;
                const double ratio = extremeRatio(*series, *base, one.highest);
                if (std::isfinite(ratio))
                    ratios += fmt::format("{}{} {:.2f}x", ratios.empty() ? "" : ", ", one.words, ratio);
            }
        if (ratios.empty()) continue;
        if (++told <= 3)
            words += fmt::format("; {} over {}: {}", names[i], names[0], ratios);
        else
            ++more;
    }
    if (more > 0) words += fmt::format("; {} other series are in the table of --csv", more);
    return words;
}

FigureData makeRequestRate(const FigureSources& sources) {
    const std::vector<ServedPoint> points = pointsOf(sources);
    FigureData data;
    addPanel(data, points, "TTFT, mean (ms)", 1, &ServedPoint::ttftMs);
    const std::size_t throughput = data.panels.size();
    addPanel(data, points, "Tokens per second", 1, &ServedPoint::tokensPerSecond);
    const bool hasThroughput = data.panels.size() > throughput;
    const std::string falls = hasThroughput ? fallWords(data.panels[throughput]) : "no throughput is known";
    addPanel(data, points, "TBT, mean (ms)", 1, &ServedPoint::tbtMs);
    addPanel(data, points, "TBT, P99 (ms)", 1, &ServedPoint::tbtP99Ms);
    addPanel(data, points, "Loaded an iteration (MB)", 1e6, &ServedPoint::bytesLoaded);
    if (data.panels.empty()) data.panels.emplace_back();
    data.note = fmt::format(
        "A point is a run at one rate, the rate being that of the arrivals. Of traces: requests that arrived after the "
        "first fifth of the time from the first to the last arrival, and the tokens and iterations of that time; TTFT "
        "begins at the intended arrival. Of files of points: their own window. Dashed: simulated. {}; here {}{}.",
        statedWords("request-rate"), falls, ratioWords(data));
    return data;
}

} // namespace

const FigureEntry kRequestRateFigure{"request-rate",
                                     "TTFT, throughput and TBT against the rate of requests",
                                     "SparseServe, Fig. 10, 11, 12, 15 and 16",
                                     "give traces of kvscope-cli load --trace FILE --rate 1,2,4 (a run for each rate; "
                                     "another --knob is another series), "
                                     "the file of load --rungs ... --resume FILE, or the document of load --json",
                                     requestRateRefusal,
                                     makeRequestRate};

} // namespace kvscope::ui
