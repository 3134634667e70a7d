#include "base/error.h"
#include "base/json_reading.h"
#include "core/select/method.h"
#include "profiler/read/step_kind.h"
#include "profiler/report/table.h"
#include "ui/figures/make_figures.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <limits>
#include <set>
#include <system_error>

namespace kvscope::ui {

using reports::RunData;

std::string methodTitle(const std::string& name) {
    for (const MethodEntry& method : methods())
        if (method.name == name) return method.title;
    return name;
}

std::string groupName(const RunData& run, const FigureSources& sources) {
    std::string name = methodTitle(run.row.method);
    std::set<std::string> backends;
    for (const RunData& other : sources.runs) backends.insert(other.row.backend.text());
    if (backends.size() > 1) name += run.row.backend == RunBackend::Cuda ? ", GPU" : ", CPU";
    return name;
}

std::vector<double> distinct(const FigureSources& sources, const std::function<double(const RunData&)>& value) {
    std::set<double> values;
    for (const RunData& run : sources.runs)
        if (const double one = value(run); std::isfinite(one)) values.insert(one);
    return {values.begin(), values.end()};
}

double tokensPerSecond(const RunData& run) { return run.summary.tokensPerSecond; }

double hitRate(const RunData& run) { return run.summary.hitRate; }

const char* coldWords() { return coldSteps() == ColdSteps::Counted ? "cold ones too" : "cold ones left out"; }

std::string throughputWords(const FigureSources& sources) {
    std::string words = "by the measured wall time of the steps, without the time between them";
    std::size_t slower = 0;
    for (const RunData& run : sources.runs) {
        if (!run.summary.gapsMatter()) continue;
        if (++slower > 3) continue;
        words += fmt::format("{} {} makes {:.4g} tokens/s by the clock", slower == 1 ? ", with which" : ",",
                             run.row.name, run.summary.tokensPerSecondWithGaps);
    }
    if (slower > 3) words += fmt::format(" and {} other runs are slower too", slower - 3);
    return words;
}

std::string theRuns(const FigureSources& sources) {
    if (sources.runs.empty()) return "there are no traces here";
    if (sources.runs.size() == 1) return "there is one run";
    return "there are " + std::to_string(sources.runs.size()) + " runs";
}

std::string ByRun::words() const {
    std::string words;
    constexpr std::size_t kNamed = 3;
    for (std::size_t i = 0; i < std::min(runs_.size(), kNamed); ++i)
        words += fmt::format("{}{} {}", i == 0 ? "" : "; ", runs_[i].first, runs_[i].second);
    if (runs_.size() > kNamed) words += fmt::format("; {} other runs are in the table of --csv", runs_.size() - kNamed);
    return words;
}

double parameterOf(const RunData& run, const char* name) {
    const nlohmann::json parameters = parseJson(run.row.paramsJson);
    const nlohmann::json& value = member(parameters, name);
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

TimeUnit timeUnit(double largestNs) {
    if (largestNs >= 1e9) return {1e9, "s"};
    if (largestNs >= 1e6) return {1e6, "ms"};
    if (largestNs >= 1e3) return {1e3, "µs"};
    return {1, "ns"};
}

void SeriesByName::add(const std::string& name, double x, double y, const std::string& basis, bool hollow) {
    auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
    if (entry == entries_.end()) entry = entries_.insert(entries_.end(), Entry{name, basis, hollow, {}});
    Sum& sum = entry->points[x];
    sum.y += y;
    ++sum.count;
}

std::vector<FigureSeries> SeriesByName::take() {
    std::vector<FigureSeries> result;
    for (const Entry& entry : entries_) {
        FigureSeries& series = result.emplace_back();
        series.name = entry.name;
        series.basis = entry.basis;
        series.hollow = entry.hollow;
        for (const auto& [x, sum] : entry.points) {
            series.x.push_back(x);
            series.y.push_back(sum.y / sum.count);
        }
    }
    return result;
}

std::vector<PromptReading> promptReadings(const FigureSources& sources) {
    std::vector<PromptReading> readings;
    for (const RunData& run : sources.runs) {
        if (!run.served || !(run.served->prefillNsPerToken > 0)) continue;
        const std::string words = serverWords(run.row),
                          name = groupName(run, sources) + (words.empty() ? "" : ", " + words);
        auto found = std::find_if(readings.begin(), readings.end(),
                                  [&](const PromptReading& reading) { return reading.name == name; });
        if (found == readings.end()) found = readings.insert(readings.end(), {name, serverKnobs(run.row), 0, {}});
        found->runs.push_back(&run);
        found->nsPerToken += run.served->prefillNsPerToken;
    }
    for (PromptReading& reading : readings) reading.nsPerToken /= double(reading.runs.size());
    return readings;
}

bool isServed(const RunData& run) { return run.served || saysServer(run.row); }

std::vector<ServedSteps> servedSteps(const FigureSources& sources) {
    std::vector<ServedSteps> servers;
    for (const RunData& run : sources.runs) {
        if (!run.served || run.served->byRows.empty()) continue;
        const std::string words = serverWords(run.row),
                          name = groupName(run, sources) + (words.empty() ? "" : ", " + words);
        auto found = std::find_if(servers.begin(), servers.end(), [&](const ServedSteps& server) {
            return server.name == name && server.of->row.blockBytes == run.row.blockBytes &&
                   server.of->row.model == run.row.model;
        });
        if (found == servers.end()) found = servers.insert(servers.end(), {name, serverKnobs(run.row), &run, {}});
        for (const RowsLoad& load : run.served->byRows) {
            const auto at = std::ranges::lower_bound(found->byRows, load.rows, {}, &RowsLoad::rows);
            if (at == found->byRows.end() || at->rows != load.rows) {
                found->byRows.insert(at, load);
                continue;
            }
            at->iterations += load.iterations;
            at->decodeNs += load.decodeNs, at->blocks += load.blocks, at->bytes += load.bytes;
        }
    }
    return servers;
}

std::vector<LoadingBeside> loadingBeside(const std::vector<ServedSteps>& servers) {
    std::vector<LoadingBeside> all;
    for (const ServedSteps& server : servers) {
        if (!server.knobs.offload || loadingWay(server.knobs).empty()) continue;
        for (const ServedSteps& other : servers) {
            const RunRow &a = server.of->row, &b = other.of->row;
            if (other.knobs.offload || a.model != b.model || a.method != b.method || a.backend != b.backend ||
                a.blockSize != b.blockSize)
                continue;
            const StepsBeside steps = stepsBeside(server.byRows, other.byRows);
            if (steps.steps > 0) all.push_back({&server, steps});
            break;
        }
    }
    return all;
}

std::string loadingWay(const ServerKnobs& knobs) {
    if (knobs.transfers == "calls") return "a copy call for each block";
    if (knobs.transfers == "batched") return "batched copy calls";
    if (knobs.transfers == "kernel") return "one kernel a layer";
    return {};
}

FigureSources readFigureSources(const std::vector<std::string>& files) {
    FigureSources sources;
    std::vector<std::string> traces;
    for (const std::string& file : files) {
        std::error_code unknown; // of a file that is not there
        if (std::filesystem::exists(file, unknown) && !std::filesystem::is_regular_file(file, unknown))
            throw Error(ErrorKind::BadInput, file + " is not a file",
                        "name a file; what a pipe gives must be in one, because it is read more than once");
        std::ifstream stream(file, std::ios::binary);
        if (!stream)
            throw Error(ErrorKind::BadInput, "cannot read " + file,
                        "name traces, JSON documents of kvscope-cli eval or quality, or points of kvscope-cli load");
        char magic[15] = {};
        stream.read(magic, sizeof(magic));
        if (file.ends_with(".kvtrace") || std::string_view(magic, sizeof(magic)) == "SQLite format 3") {
            traces.push_back(file);
            continue;
        }
        if (holdsServedPoints(file)) {
            const std::vector<ServedPoint> served = readServedPoints(file);
            sources.served.insert(sources.served.end(), served.begin(), served.end());
            continue;
        }
        if (holdsQuality(file)) {
            const std::vector<QualityPoint> cells = readQuality(file);
            sources.quality.insert(sources.quality.end(), cells.begin(), cells.end());
            continue;
        }
        const std::vector<EvalPoint> points = readEvalResults(file);
        sources.evals.insert(sources.evals.end(), points.begin(), points.end());
    }
    if (!traces.empty()) sources.runs = reports::readRuns(traces);
    return sources;
}

FigureData makeFigure(const FigureEntry& entry, const FigureSources& sources) {
    if (const std::string why = entry.refusal(sources); !why.empty())
        throw Error(ErrorKind::BadInput, std::string("figure ") + entry.id + " cannot be drawn: " + why, entry.needs);
    return entry.make(sources);
}

std::string figureCsv(const FigureData& data) {
    using namespace reports;
    Table table{"figure", "", "", {}, {}};
    for (const char* id : {"panel", "series", "x", "name", "y", "low", "high", "basis", "x_title", "y_title"})
        table.columns.push_back({id, "", "", false});
    for (std::size_t number = 0; number < data.panels.size(); ++number) {
        const FigurePanel& panel = data.panels[number];
        for (const FigureSeries& series : panel.series)
            for (std::size_t i = 0; i < series.x.size(); ++i) {
                const bool bars = panel.mark == FigurePanel::Mark::StackedBars;
                const auto at = [&](const std::vector<double>& values) {
                    return real(i < values.size() ? values[i] : std::nan(""), Quantity::Count);
                };
                table.rows.push_back({count(std::int64_t(number) + 1), text(series.name), at(series.x),
                                      text(bars ? panel.names[std::size_t(series.y[i])] : std::string()), at(series.y),
                                      at(series.low), at(series.high), text(series.basis), text(panel.xTitle),
                                      text(panel.yTitle)});
            }
    }
    return csv(table);
}

} // namespace kvscope::ui
