// kvscope-cli load: offers a workload to an engine in this process, and measures what becomes of it.
#include "app/cli/commands.h"
#include "app/cli/load_arguments.h"
#include "app/cli/long_action.h"
#include "app/cli/name_option.h"
#include "app/cli/result_file.h"
#include "app/cli/serving_report.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/serve/capacity.h"
#include "profiler/run/run_recording.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvscope::cli {

using Json = nlohmann::ordered_json;
using namespace serve;

EngineOptions engineOfLoad(const LoadArguments& arguments, const ServingChoices& choices) {
    EngineOptions options = engineOf(arguments, choices);
    options.session.name = arguments.name;
    options.session.recordModelPath = !arguments.noModelPath;
    return options;
}

LoadOptions loadOptions(const ServingChoices& choices, const SplicedPrompts& prompts) {
    LoadOptions options;
    static_cast<WindowOptions&>(options) = choices.window;
    options.prompt = [&prompts](const WorkloadLine& line, std::int64_t request) {
        return prompts.prompt(line.promptTokens, request, line.seed);
    };
    return options;
}

SimulationOptions simulationOf(const EngineOptions& engine, const WindowOptions& window) {
    SimulationOptions options;
    static_cast<WindowOptions&>(options) = window;
    options.scheduler = engine.scheduler, options.costs = engine.costs, options.budget = engine.budget;
    return options;
}

namespace {

void printRefusals(const LoadResult& result) {
    if (!result.refusal.empty()) printOut("  refused: {}\n", result.refusal);
    if (result.failed > 0) printOut("  {} requests failed, the first: {}\n", result.failed, result.failure);
    if (result.rowsApart > 0)
        printOut("  {} requests launched kernels of their own on the GPU, and so did every step that they were in\n",
                 result.rowsApart);
}

/// Writes the table that is fitted to the run. given: the table of --costs, whose own numbers stay its own. base: the
/// same numbers with the engine's shape.
void writeCosts(const LoadArguments& arguments, const CostFit& fit, const CostTable& given, ServiceCosts base,
                const SchedulerOptions& options) {
    CostTable table = given;
    table.costs = fit.fit(std::move(base), options), table.listed = true;
    table.method = arguments.method;
    std::vector<std::string> keys = fit.fittedKeys(options);
    if (arguments.method == "full" && std::find(keys.begin(), keys.end(), "decode_us_per_ktoken") != keys.end()) {
        // The method is full attention, so what its context costs is what full attention costs.
        table.costs.fullUsPerKtoken = table.costs.decodeUsPerKtoken;
        keys.emplace_back("full_us_per_ktoken");
    }
    for (std::string& key : keys)
        if (!table.owns(key)) table.own.push_back(std::move(key));
    writeResultFile(arguments.costsOut, [&](std::ostream& out) { out << table.toJson() << "\n"; });
}

/// Refuses to write the fitted table over the one that was read. @throws Error(BadInput)
void refuseOverwriting(const LoadArguments& arguments) {
    std::error_code ignored;
    if (arguments.costs.empty() || arguments.costsOut.empty() ||
        !std::filesystem::equivalent(arguments.costs, arguments.costsOut, ignored))
        return;
    throw Error(ErrorKind::BadInput,
                fmt::format("--costs-out {} would overwrite the table that --costs reads", arguments.costsOut),
                "name another file");
}

/// What is said of all points.
Json documentOf(const LoadArguments& arguments, const std::string& model, const EngineOptions& engine,
                const LoadOptions& options) {
    return {{"workload", arguments.workload},
            {"simulated", false},
            {"clock", options.processorTime ? "processor" : "wall"},
            {"model", model},
            {"method", arguments.method},
            {"planted", engine.planted},
            {"slo",
             {{"ttft_ms", options.slo.ttftMs},
              {"tbt_ms", options.slo.tbtMs},
              {"tbt_of", options.slo.tpot ? "mean" : "p99"}}},
            {"device_kv_bytes", engine.budget.device},
            {"host_kv_bytes", engine.budget.host},
            {"scratch_bytes", engine.budget.scratch},
            {"costs", Json::parse(engine.costs.toJson())},
            {"seed", arguments.seed},
            {"points", Json::array()}};
}

/// What is said of one rate.
Json pointOf(double rate, const LoadResult& result, const std::string& broken) {
    Json point = jsonOf(result.numbers, broken);
    point["rate"] = rate;
    point["first_refusal"] = result.refusal.empty() ? Json(nullptr) : Json(result.refusal);
    point["failed"] = result.failed;
    point["first_failure"] = result.failure.empty() ? Json(nullptr) : Json(result.failure);
    point["rows_apart"] = result.rowsApart;
    return point;
}

/// steps: the level at which the engine's steps are recorded; nothing: they are not.
RecordingRequest requestOf(const LoadArguments& arguments, std::optional<RecordLevel> steps) {
    RecordingRequest request;
    request.trace = arguments.trace, request.overwrite = arguments.overwrite;
    request.level = steps.value_or(RecordLevel::Counters);
    request.kernels = false;
    return request;
}

/// Searches with the engine, and once more without it: in the simulator, by the costs that its plans were made from.
void searchBoth(const Workload& workload, SimulationOptions simulation, const CapacityOptions& rule,
                const Progress& progress, Json& document, const std::function<CapacityPoint(double rate)>& serveAt) {
    const Capacity measured = searchCapacity(halfUsed(workload, simulation), rule.tolerance, serveAt);
    simulation.between = [&] { progress(1, "simulating"); };
    document["capacity_per_s"] = measured.rate;
    document["broke_first"] = measured.broken;
    document["simulated_capacity_per_s"] = findCapacity(workload, simulation, rule).rate;
}

/// Serves the workload with the engine at one rate after the other. What came of each rate goes into `document`, and is
/// printed at once where no JSON is asked for.
struct RateServer {
    const LoadArguments& arguments;
    const CostTable& table; // of --costs
    const CapacityOptions& rule;
    const std::shared_ptr<const Model>& model;
    const Workload& workload;
    const EngineOptions& engine;
    LoadOptions& options;
    RunRecording& recording;
    LongAction& action;
    const Progress& progress;
    const SimulationOptions& bounds;  // names the bounds that a run breaks
    Json document;                    // what --json prints
    CostFit fit{};                    // of all rates
    std::optional<Error> unwritten{}; // the costs, told behind the results

    void serveAll();

private:
    /// from, to: the part of the progress that belongs to the rate.
    CapacityPoint serve(double rate, double from, double to);
    void writeFit(ServiceCosts base);
};

CapacityPoint RateServer::serve(double rate, double from, double to) {
    Workload scaled = workload;
    changeRate(scaled, rate / workload.rate());
    options.fit = &fit;
    options.between = [this, rate, from, to](double done) {
        progress(from + done * (to - from), fmt::format("{:.4g} requests/s", rate));
    };
    LoadResult result = load(model, scaled, engine, options);
    if (recording.records()) recording.flush();
    const std::string broken = brokenBound(result.numbers, bounds, rule);
    Json point = pointOf(rate, result, broken);
    if (recording.records()) point["run"] = recording.runId();
    document["backend"] = result.backend;
    document["points"].push_back(std::move(point));
    if (!arguments.costsOut.empty()) writeFit(result.costs); // with the engine's shape
    if (!arguments.json) {
        action.clear();
        printResult(result.numbers, broken);
        printRefusals(result);
    }
    result.numbers.outcomes.clear();
    return {rate, broken, std::move(result.numbers)};
}

void RateServer::writeFit(ServiceCosts base) {
    try {
        writeCosts(arguments, fit, table, std::move(base), engine.scheduler);
        unwritten.reset();
    } catch (const Error& error) {
        unwritten.emplace(error);
    }
}

void RateServer::serveAll() {
    if (arguments.ladder.search) {
        searchBoth(workload, bounds, rule, progress, document, [&](double rate) { return serve(rate, 0, 1); });
        action.clear();
        if (!arguments.json)
            printOut("capacity {:.4g} requests/s measured, above it {}; {:.4g} simulated with the costs of the plans\n",
                     document["capacity_per_s"].get<double>(), document["broke_first"].get<std::string>(),
                     document["simulated_capacity_per_s"].get<double>());
        return;
    }
    const std::vector<double> rates = arguments.rates.empty() ? std::vector<double>{workload.rate()} : arguments.rates;
    const auto all = double(rates.size());
    for (std::size_t i = 0; i < rates.size(); ++i) serve(rates[i], double(i) / all, double(i + 1) / all);
}

int runLoad(const LoadArguments& arguments, const Options& command) {
    checkRunName(arguments.name);
    refuseVainWorkload(command, arguments);
    refuseVainCapacity(command, arguments.capacity);
    const CapacityOptions rule = capacityOf(arguments.capacity);
    if (!arguments.ladder.rungs.empty()) return climbRungs(arguments);
    refuseOverwriting(arguments);
    checkResultFile(arguments.costsOut);
    const Workload workload = workloadOf(arguments, arguments.seed);
    const CostTable table = costTableOf(arguments);
    ServingChoices choices = servingChoices(arguments, table.costs);
    EngineOptions engine = engineOfLoad(arguments, choices);
    const std::shared_ptr<const Model> model = loadModel(arguments.model, arguments.calibration);
    const SplicedPrompts prompts(*model);
    LongAction action;
    engine.stop = action.stop();
    const Progress progress = action.stopping();
    LoadOptions options = loadOptions(choices, prompts);
    options.processorTime = arguments.processorTime;
    const std::optional<RecordLevel> steps = levelOfSteps(arguments.record);
    RunRecording recording(requestOf(arguments, steps), engine.session.backend);
    recording.open(); // before the costs are measured: a file that cannot be written ends the command at once
    if (arguments.costs.empty()) {
        options.between = [&](double) { progress(0, "measuring what iterations cost"); };
        engine.costs = measureCosts(model, engine, options);
    }
    if (!arguments.slo.empty()) { // tbt=25x counts steps of this engine
        const ServingChoices again = servingChoices(arguments, engine.costs);
        engine.scheduler = again.scheduler;
        static_cast<WindowOptions&>(options) = again.window;
    }
    if (recording.records()) options.sink = &recording.sink();
    options.recordSteps = steps.has_value();
    const SimulationOptions bounds = simulationOf(engine, options);
    RateServer server{.arguments = arguments,
                      .table = table,
                      .rule = rule,
                      .model = model,
                      .workload = workload,
                      .engine = engine,
                      .options = options,
                      .recording = recording,
                      .action = action,
                      .progress = progress,
                      .bounds = bounds,
                      .document = documentOf(arguments, model->name(), engine, options)};
    Json& document = server.document;
    const auto printJson = [&] { printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace)); };
    try {
        server.serveAll();
    } catch (const Error& error) { // the rates that are finished have been printed where no JSON is asked for
        action.clear();
        document["cancelled"] = error.kind == ErrorKind::Cancelled;
        if (arguments.json && !document["points"].empty()) printJson();
        throw;
    }
    action.clear();
    if (recording.records()) {
        recording.finish();
        document["trace"] = arguments.trace;
        printErr("recorded in {}\n", arguments.trace);
    }
    if (arguments.json)
        printJson();
    else
        printOut("measured with {} on {}{}: {}\n", arguments.method, model->name(),
                 arguments.planted.empty() ? "" : ", planted selections", document["backend"].get<std::string>());
    remarkOnShape(arguments, table.costs, *model);
    if (server.unwritten) throw *server.unwritten;
    return 0;
}

} // namespace

Command addLoad(Options& program) {
    auto arguments = std::make_shared<LoadArguments>();
    Options sub = program.command("load", "Serve a workload with the engine: waiting, times between tokens, goodput");
    addModelOptions(sub, *arguments);
    const Option rate = addServingOptions(sub, *arguments, KnobOption::Knob);
    const Option costsOut =
        sub.add("--costs-out", arguments->costsOut, "Write the costs fitted to the run, for simulate --costs")
            .valueName("FILE");
    const Option search =
        sub.flag("--search", arguments->ladder.search,
                 "Find the largest rate that keeps the bounds; with --rungs in the simulator, then serve around it")
            .excludes(rate);
    const Option rungs =
        addLadderOptions(sub, arguments->ladder, "Rungs of SparseServe's ladder: all, or names", search)
            .excludes(costsOut);
    addCapacityOptions(sub, arguments->capacity);
    const Option trace = sub.add("--trace", arguments->trace,
                                 "Record requests and iterations into this .kvtrace file, a run for each rate")
                             .valueName("FILE")
                             .excludes(rungs);
    addRecordOption(sub, arguments->record, trace);
    sub.flag("--overwrite", arguments->overwrite, "Replace the trace file").needs(trace);
    addNameOption(sub, arguments->name, trace);
    sub.flag("--no-model-path", arguments->noModelPath, "Leave out of the trace where the model lies").needs(trace);
    sub.flag(
        "--processor-time", arguments->processorTime,
        "Count processor time of one thread and skip waits, for a machine that does other work; needs --threads 1");
    sub.flag("--engine", arguments->ladder.searchEngine,
             "Search the capacity of every rung and seed with the engine as well, not only around the simulated one")
        .needs(rungs);
    sub.add("--seeds", arguments->ladder.seeds, "Repeat with so many seeds").range(1, 1000).needs(rungs);
    return [arguments, sub] { return runLoad(*arguments, sub); };
}

} // namespace kvscope::cli
