#include "profiler/replay/recorded_server.h"

#include "base/json_reading.h"
#include "core/serve/serving_metrics.h"
#include "core/trace/run_meta.h"
#include "profiler/replay/hit_curves.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>

namespace kvscope {
namespace {

using nlohmann::json;

constexpr int kSteps = 4; // of the values around, in either direction; two of them double a value

serve::SchedulerOptions knobsOf(const json& facts) {
    ParameterValues values = serve::schedulerDefaults();
    for (const Parameter& knob : serve::schedulerParameters()) {
        const json& value = member(facts, knob.key.c_str());
        if (value.is_null()) continue;
        values.set(serve::schedulerParameters(), knob.key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    return serve::schedulerOptions(values);
}

std::int64_t budgetOf(const json& facts, const char* key) {
    const json& value = member(facts, key);
    const double bytes = value.is_number() ? value.get<double>() : 0;
    if (!(bytes >= 1) || bytes > 1e15)
        throw Error(ErrorKind::BadInput, fmt::format("the run's '{}' is not an amount of memory", key));
    return std::int64_t(bytes);
}

double predictionErrorOf(const std::vector<IterationRow>& iterations) {
    std::vector<double> errors;
    for (const IterationRow& row : iterations)
        if (row.durationNs > 0)
            errors.push_back(std::abs(double(row.predictedNs) - double(row.durationNs)) / double(row.durationNs));
    std::sort(errors.begin(), errors.end());
    return errors.empty() ? 0 : serve::percentile(errors, 0.5);
}

/// Takes hits and drift from the blocks that the run selected, where they are recorded.
void takeHits(RecordedServer& server, const TraceReader& reader, const RunRow& run, const std::stop_token& stop) {
    try {
        const HitCurves hits = hitCurvesOf(loadSelectionTrace(reader, run.runId, {}, stop), stop);
        serve::ServiceCosts& costs = server.options.costs;
        costs.lruHits.points = hits.pool, costs.drift = hits.drift;
        if (!hits.partition.empty()) costs.partitionHits.points = hits.partition;
        server.hitsRecorded = true;
    } catch (const Error& error) {
        if (error.kind == ErrorKind::Cancelled) throw;
        server.whyNoHits = oneLine(error);
        // The sentence may be part of a picture that is passed on, so it names the file without its folder.
        const std::string& path = reader.path();
        if (const std::size_t at = server.whyNoHits.find(path); at != std::string::npos)
            server.whyNoHits.replace(at, path.size(), std::filesystem::path(path).filename().string());
    }
}

} // namespace

serve::Workload recordedWorkload(const std::vector<RequestRow>& requests, const std::string& name) {
    std::vector<RequestRow> inOrder = requests;
    std::stable_sort(inOrder.begin(), inOrder.end(),
                     [](const RequestRow& a, const RequestRow& b) { return a.arrivalNs < b.arrivalNs; });
    std::string lines; // read by the rules of a workload's file, which refuse what a damaged trace may hold
    for (const RequestRow& request : inOrder) {
        const double sinceFirstMs = (double(request.arrivalNs) - double(inOrder.front().arrivalNs)) / 1e6;
        const std::int64_t output = request.finished() ? request.outputTokens : request.maxTokens;
        lines += json{{"timestamp", sinceFirstMs},
                      {"input_length", request.promptTokens},
                      {"output_length", output},
                      {"class", request.kind},
                      {"seed", std::uint64_t(std::max<std::int64_t>(request.number, 0))}}
                     .dump(-1, ' ', false, json::error_handler_t::replace) +
                 "\n";
    }
    return serve::readWorkload(lines, name);
}

RecordedServer readRecordedServer(const TraceReader& reader, const RunRow& run, const std::stop_token& stop) {
    const json facts = parseJson(run.metaOr(run_meta::kServing));
    const json& costs = member(facts, "costs");
    if (!costs.is_object())
        throw Error(ErrorKind::Unsupported, "the run does not say what its server's iterations cost",
                    "record it again with kvscope-cli load --trace or serve --trace");
    RecordedServer server;
    serve::SimulationOptions& options = server.options;
    options.scheduler = knobsOf(facts);
    options.costs = serve::ServiceCosts::fromJson(costs.dump());
    options.budget.device = budgetOf(facts, "device_kv_bytes");
    options.budget.host = budgetOf(facts, "host_kv_bytes");
    options.budget.scratch = budgetOf(facts, "scratch_bytes");
    options.slo = {options.scheduler.ttftBoundMs, options.scheduler.tbtBoundMs, false};
    const ServingRows rows = readServing(reader, run.runId);
    server.workload = recordedWorkload(rows.requests, run.name);
    server.predictionError = predictionErrorOf(rows.iterations);
    options.warmUpRequests = 0, options.warmUpSeconds = 0;
    if (options.scheduler.offload) takeHits(server, reader, run, stop);
    return server;
}

double valueOf(const RecordedServer& server, ServerChange change) {
    switch (change) {
    case ServerChange::DeviceMemory:
        return double(server.options.budget.device);
    case ServerChange::Rate:
        return server.workload.rate();
    case ServerChange::Rows:
        return server.options.scheduler.rows;
    case ServerChange::Window:
        return server.options.scheduler.window;
    }
    return 0;
}

std::vector<double> valuesAround(const RecordedServer& server, ServerChange change) {
    const double recorded = valueOf(server, change);
    const bool whole = change == ServerChange::Rows || change == ServerChange::Window;
    std::vector<double> values;
    for (int step = -kSteps; step <= kSteps; ++step) {
        const double value = recorded * std::exp2(step / 2.0);
        values.push_back(whole ? std::max(1.0, std::round(value)) : value);
    }
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
}

RecordedServer changed(RecordedServer server, ServerChange change, double value) {
    switch (change) {
    case ServerChange::DeviceMemory:
        server.options.budget.device = std::int64_t(std::llround(value));
        break;
    case ServerChange::Rate:
        serve::changeRate(server.workload, value / server.workload.rate());
        break;
    case ServerChange::Rows:
        server.options.scheduler.rows = int(std::lround(value));
        break;
    case ServerChange::Window:
        server.options.scheduler.window = int(std::lround(value));
        break;
    }
    return server;
}

serve::ServingResult simulateServer(const RecordedServer& server, const std::stop_token& stop) {
    serve::SimulationOptions options = server.options;
    options.between = [&stop] { throwIfCancelled(stop); };
    serve::ServingResult result = serve::simulate(server.workload, options);
    result.outcomes = {};
    return result;
}

} // namespace kvscope
