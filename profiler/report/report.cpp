#include "profiler/report/report.h"

#include "base/error.h"
#include "base/whole_file.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::reports {
namespace {

constexpr double kRead = 0.4,
                 kInsights = 0.75; // shares of the progress at which reading and insights end; comparing follows

void writeFile(const std::string& path, const std::string& content) {
    const std::string why = writeWholeFile(path, [&](std::ostream& file) { file << content; });
    if (!why.empty())
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path, why),
                    "choose a folder that is writable and has space");
}

/// [[1, 2], [3]]; empty if a sequence has none.
std::string promptIds(const RunData& run) {
    const TraceReader reader(run.path);
    auto all = nlohmann::json::array();
    for (int sequence = 0; sequence < run.row.sequences; ++sequence) {
        auto ids = nlohmann::json::array();
        for (const TokenRow& token : reader.prompt(run.row.runId, sequence)) ids.push_back(token.id);
        if (ids.empty()) return {};
        all.push_back(std::move(ids));
    }
    return all.empty() ? std::string() : all.dump() + "\n";
}

} // namespace

std::string Report::title() const {
    return runs.size() == 1 ? runs.front().row.name : fmt::format("{} runs compared", runs.size());
}

const Table* Report::table(std::string_view id) const {
    const auto found = std::find_if(tables.begin(), tables.end(), [&](const Table& table) { return table.id == id; });
    return found == tables.end() ? nullptr : &*found;
}

Report makeReport(const std::vector<std::string>& traces, const Progress& progress) {
    Report report;
    const auto now = std::chrono::system_clock::now();
    report.createdUtc = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
    report.runs = readRuns(
        traces, [&](double fraction, std::string_view what) { kvscope::report(progress, kRead * fraction, what); });
    const double insightsEnd = report.runs.size() > 1 ? kInsights : 1;
    for (const RunData& run : report.runs) {
        InsightOptions options;
        options.found = [&](const InsightReport& soFar) {
            const double judged = soFar.rules > 0 ? double(soFar.judged) / soFar.rules : 0;
            const double runs = double(report.insights.size()) + judged;
            kvscope::report(progress, std::lerp(kRead, insightsEnd, runs / double(report.runs.size())),
                            "looking for what stands out");
        };
        report.insights.push_back(insightsOf(TraceReader(run.path), run.row.runId, options));
    }
    report.tables.push_back(findings(report.runs, report.insights));
    for (Table& table : servingTables(report.runs)) report.tables.push_back(std::move(table));
    using Make = Table (*)(const std::vector<RunData>&);
    for (const Make make :
         {keyNumbers, intervals, breakdown, slowestSteps, layers, layerStages, transfers, pcieCounters})
        report.tables.push_back(make(report.runs));
    report.tables.push_back(exposure(report.runs, report.insights));
    report.tables.push_back(exposedLayers(report.runs, report.insights));
    if (report.runs.size() > 1) {
        report.tables.push_back(comparison(report.runs));
        const auto shown = [&](double fraction, std::string_view what) {
            kvscope::report(progress, std::lerp(insightsEnd, 1.0, fraction), what);
        };
        for (Table& table : verdicts(report.runs, shown)) report.tables.push_back(std::move(table));
    }
    for (const Make make : {configuration, environment, health, reproduction})
        report.tables.push_back(make(report.runs));
    return report;
}

std::vector<std::string> writeCsvFolder(const Report& report, const std::string& folder) {
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure)
        throw Error(ErrorKind::Storage, fmt::format("cannot make the folder {}: {}", folder, failure.message()),
                    "choose another place for --csv");
    std::vector<std::string> files;
    const auto write = [&](const std::string& name, const std::string& content) {
        files.push_back((std::filesystem::path(folder) / name).string());
        writeFile(files.back(), content);
    };
    for (const Table& table : report.tables) write(table.id + ".csv", csv(table));
    for (std::size_t run = 0; run < report.runs.size(); ++run)
        if (const std::string ids = promptIds(report.runs[run]); !ids.empty())
            write(fmt::format("prompt-{}.json", run + 1), ids);
    return files;
}

std::string lossText(const RunData& run) {
    std::string text;
    if (run.row.droppedSteps > 0)
        text = display(double(run.row.droppedSteps), Quantity::Count) +
               " steps were dropped while recording: sums are too small";
    if (!run.row.error.empty()) text += (text.empty() ? "" : "; ") + ("the recording failed: " + run.row.error);
    if (run.lostGpuRecords > 0)
        text += (text.empty() ? "" : "; ") + display(double(run.lostGpuRecords), Quantity::Count) +
                " records of GPU kernels or copies were lost: their sums are too small";
    if (run.lostPmSamples > 0)
        text += (text.empty() ? "" : "; ") + display(double(run.lostPmSamples), Quantity::Count) +
                " samples of the GPU's counters were lost: the bytes they counted are too few";
    return text;
}

} // namespace kvscope::reports
