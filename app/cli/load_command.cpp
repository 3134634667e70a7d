// kvscope-cli load: what a workload finds at the engine itself, in this process.
#include "app/cli/commands.h"
#include "app/cli/ladder.h"
#include "app/cli/long_action.h"
#include "app/cli/serving_options.h"
#include "app/cli/serving_report.h"
#include "app/cli/setting_options.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "base/host_memory.h"
#include "base/whole_file.h"
#include "core/prompt/prompts.h"
#include "core/serve/capacity.h"
#include "core/serve/load.h"
#include "profiler/run/run_recording.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve; // what this command is about

struct LoadArguments : ServingArguments {
    std::string model = kDefaultModel, calibration, method = "nosa", backend = nameOf(Backend::Cpu), costsOut, rungs,
                resume, trace, name;
    std::vector<std::string> settings;
    int threads = 0, seeds = 1;
    bool search = false, overwrite = false, noModelPath = false;
    LoadArguments() { deviceKv = "256M", hostKv = "4G", scratch = "512M", warmUp = 10, warmUpSeconds = 5; }
};

EngineOptions engineOf(const LoadArguments& arguments, const ServingChoices& choices) {
    EngineOptions options;
    options.session.method = arguments.method;
    options.session.threads = arguments.threads;
    options.session.name = arguments.name;
    options.session.recordModelPath = !arguments.noModelPath;
    if (arguments.backend == nameOf(Backend::Cuda))
        options.session.backend = Backend::Cuda;
    else if (arguments.backend != nameOf(Backend::Cpu))
        throw Error(ErrorKind::BadInput, fmt::format("unknown backend '{}'", arguments.backend), "use cpu");
    options.session.settings = parseSettings("--set", arguments.settings);
    options.scheduler = choices.scheduler;
    options.budget = choices.budget;
    options.costs = choices.costs;
    return options;
}

void printRefusals(const LoadResult& result) {
    if (!result.refusal.empty()) printOut("  refused: {}\n", result.refusal);
    if (result.failed > 0) printOut("  {} requests failed\n", result.failed);
}

/// What every rung of the ladder has: engines of the two methods and one set of bounds.
struct LadderEngines {
    EngineOptions sparse, full;
    CapacityOptions rule;

    EngineOptions onThe(const Rung& rung) const {
        EngineOptions engine = rung.sparse ? sparse : full;
        engine.scheduler = onRung(rung, engine.scheduler);
        return engine;
    }

    /// Measures the costs of both methods with everything resident, or takes those that are finished already. `own`
    /// false: the sparse method has a table, and full attention follows from it.
    void findCosts(const std::shared_ptr<const Model>& model, const LoadOptions& options, bool own,
                   FinishedPoints& finished) {
        if (!own) {
            full.costs = costsOnRung(rungs().front(), sparse.costs);
            return;
        }
        for (EngineOptions* engine : {&sparse, &full}) {
            const std::string key = "costs of " + engine->session.method;
            if (!finished.find(key)) {
                EngineOptions resident = *engine;
                resident.scheduler.offload = false;
                finished.add(key, Json::parse(measureCosts(model, resident, options).toJson()));
            }
            engine->costs = ServiceCosts::fromJson(finished.find(key)->dump());
        }
    }
};

SimulationOptions simulationOf(const EngineOptions& engine, const WindowOptions& window) {
    SimulationOptions options;
    static_cast<WindowOptions&>(options) = window;
    options.scheduler = engine.scheduler, options.costs = engine.costs, options.budget = engine.budget;
    return options;
}

/// The costs of both methods are measured, the capacity of every rung is searched in the simulator, and the engine then
/// serves around it.
int climbRungs(const LoadArguments& arguments) {
    refuseKnobsOfRungs(arguments.knobs, "--knob");
    Ladder ladder;
    ladder.rungs = rungsNamed(arguments.rungs);
    std::map<std::uint64_t, Workload> workloads;
    for (int s = 0; s < arguments.seeds; ++s) {
        const std::uint64_t seed = arguments.seed + std::uint64_t(s);
        ladder.seeds.push_back(seed);
        workloads.emplace(seed, workloadOf(arguments, seed));
    }
    const ServingChoices choices = servingChoices(arguments, costsOf(arguments));
    LadderEngines engines{engineOf(arguments, choices), engineOf(arguments, choices), {}};
    engines.full.session.method = "full", engines.full.session.settings.clear();
    const std::shared_ptr<const Model> model = loadModel(arguments.model, arguments.calibration);
    const SplicedPrompts prompts(*model);
    LongAction action;
    const Progress progress = action.stopping();
    LoadOptions options;
    static_cast<WindowOptions&>(options) = choices.window;
    options.prompt = [&](const WorkloadLine& line, std::int64_t request) {
        return prompts.prompt(line.promptTokens, request, line.seed);
    };
    Json document{{"workload", arguments.workload}, {"requests", arguments.requests},
                  {"scale", arguments.scale},       {"outputs", arguments.outputs},
                  {"cap", arguments.cap},           {"arrivals", arguments.arrivals},
                  {"counted", arguments.counted},   {"warm_up", arguments.warmUp},
                  {"knobs", arguments.knobs},       {"model", model->name()},
                  {"method", arguments.method},     {"settings", arguments.settings},
                  {"slo", arguments.slo},           {"device_kv", arguments.deviceKv},
                  {"host_kv", arguments.hostKv},    {"costs_from", arguments.costs}};
    FinishedPoints finished(arguments.resume, document);
    ladder.finished = &finished;
    options.between = [&](double) { progress(0, "measuring what iterations cost"); };
    engines.findCosts(model, options, arguments.costs.empty(), finished);
    const ServingChoices bounded = servingChoices(arguments, engines.sparse.costs); // tbt=25x of this engine's step
    engines.sparse.scheduler = engines.full.scheduler = bounded.scheduler;
    static_cast<WindowOptions&>(options) = bounded.window;
    ladder.firstRate = [&](const Rung& rung, std::uint64_t seed) {
        return halfUsed(workloads.at(seed), simulationOf(engines.onThe(rung), options));
    };
    ladder.simulated = [&](const Rung& rung, std::uint64_t seed, double rate) {
        SimulationOptions simulation = simulationOf(engines.onThe(rung), options);
        simulation.between = [&] { progress(0, rung.name); };
        const CapacityPoint point = simulatePoint(workloads.at(seed), rate, simulation, engines.rule);
        return LadderPoint{rate, point.broken, point.result.refused, jsonOf(point.result, point.broken)};
    };
    ladder.measured = [&](const Rung& rung, std::uint64_t seed, double rate) {
        Workload scaled = workloads.at(seed);
        changeRate(scaled, rate / scaled.rate());
        const EngineOptions engine = engines.onThe(rung);
        options.between = [&](double done) { progress(done, fmt::format("{} at {:.4g} requests/s", rung.name, rate)); };
        const LoadResult result = load(model, scaled, engine, options);
        const std::string broken = brokenBound(result.numbers, simulationOf(engine, options), engines.rule);
        return LadderPoint{rate, broken, result.numbers.refused, jsonOf(result.numbers, broken)};
    };
    ladder.progress = progress;
    ladder.clearProgress = [&] { action.clear(); };
    document["slo"] = {{"ttft_ms", options.slo.ttftMs}, {"tbt_ms", options.slo.tbtMs}};
    document["costs"] = Json::parse(engines.sparse.costs.toJson());
    document.update(climb(ladder, !arguments.json));
    action.clear();
    if (arguments.json)
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printOut("capacities simulated with costs measured on {}, TBT bound {:.4g} ms; lines that begin with measured "
                 "are the engine's\n",
                 model->name(), options.slo.tbtMs);
    return 0;
}

int runLoad(const LoadArguments& arguments) {
    if (!arguments.rungs.empty()) return climbRungs(arguments);
    if (arguments.search)
        throw Error(ErrorKind::BadInput, "load --search finds the capacity of rungs only",
                    "add --rungs all, or simulate --search with the file of load --costs-out");
    const Workload workload = workloadOf(arguments, arguments.seed);
    ServingChoices choices = servingChoices(arguments, costsOf(arguments));
    EngineOptions engine = engineOf(arguments, choices);
    const std::shared_ptr<const Model> model = loadModel(arguments.model, arguments.calibration);
    const SplicedPrompts prompts(*model);
    LongAction action;
    const Progress progress = action.stopping();
    LoadOptions options;
    static_cast<WindowOptions&>(options) = choices.window;
    options.prompt = [&](const WorkloadLine& line, std::int64_t request) {
        return prompts.prompt(line.promptTokens, request, line.seed);
    };
    if (arguments.costs.empty()) {
        options.between = [&](double) { progress(0, "measuring what iterations cost"); };
        engine.costs = measureCosts(model, engine, options);
    }
    if (!arguments.slo.empty()) { // tbt=25x is a multiple of this engine's own step
        const ServingChoices again = servingChoices(arguments, engine.costs);
        engine.scheduler = again.scheduler;
        static_cast<WindowOptions&>(options) = again.window;
    }
    Json document{{"workload", arguments.workload},
                  {"simulated", false},
                  {"model", model->name()},
                  {"method", arguments.method},
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
    const SimulationOptions bounds = simulationOf(engine, options); // for the words of what is broken
    RecordingRequest request;
    request.trace = arguments.trace, request.overwrite = arguments.overwrite;
    request.level = RecordLevel::Counters;
    RunRecording recording(request, Backend::Cpu);
    recording.open();
    if (recording.records()) options.sink = &recording.sink();
    const std::vector<double> rates = arguments.rates.empty() ? std::vector<double>{workload.rate()} : arguments.rates;
    for (std::size_t i = 0; i < rates.size(); ++i) {
        Workload scaled = workload;
        changeRate(scaled, rates[i] / workload.rate());
        options.between = [&](double done) {
            progress((double(i) + done) / double(rates.size()), fmt::format("{:.4g} requests/s", rates[i]));
        };
        const LoadResult result = load(model, scaled, engine, options);
        if (recording.records()) recording.flush();
        const std::string broken = brokenBound(result.numbers, bounds, {});
        Json point = jsonOf(result.numbers, broken);
        point["rate"] = rates[i];
        point["first_refusal"] = result.refusal.empty() ? Json(nullptr) : Json(result.refusal);
        point["failed"] = result.failed;
        if (recording.records()) point["run"] = recording.runId();
        document["backend"] = result.backend;
        document["points"].push_back(std::move(point));
        if (!arguments.costsOut.empty()) {
            const std::string fault =
                writeWholeFile(arguments.costsOut, [&](std::ostream& out) { out << result.costs.toJson() << "\n"; });
            if (!fault.empty())
                throw Error(ErrorKind::Storage, fmt::format("cannot write '{}': {}", arguments.costsOut, fault));
        }
        if (arguments.json) continue;
        action.clear();
        printResult(result.numbers, broken);
        printRefusals(result);
    }
    action.clear();
    if (recording.records()) {
        recording.finish();
        document["trace"] = arguments.trace;
        printErr("recorded in {}\n", arguments.trace);
    }
    if (arguments.json)
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printOut("measured with {} on {}: {}\n", arguments.method, model->name(),
                 document["backend"].get<std::string>());
    return 0;
}

} // namespace

Command addLoad(Options& program) {
    auto arguments = std::make_shared<LoadArguments>();
    Options sub = program.command("load", "Serve a workload with the engine: waiting, times between tokens, goodput");
    sub.add("--model", arguments->model, "Folder with config.json, or GGUF file").showsDefault();
    sub.add("--calibration", arguments->calibration, "Folder with what was learned beside the model");
    sub.add("--method", arguments->method, "Attention method; methods --json says which serve").showsDefault();
    sub.add("--set", arguments->settings, "A parameter of the method, key=value");
    sub.add("--backend", arguments->backend, "cpu").showsDefault();
    sub.add("--threads", arguments->threads, "Threads of the CPU backend; default: all cores").range(1, 1024);
    const Option rate = addServingOptions(sub, *arguments, KnobOption::Knob);
    const Option costsOut =
        sub.add("--costs-out", arguments->costsOut, "Write the costs fitted to the run, for simulate --costs")
            .valueName("FILE");
    const Option search = sub.flag("--search", arguments->search,
                                   "With --rungs: search capacities in the simulator, then serve around them")
                              .excludes(rate);
    const Option rungsOption = sub.add("--rungs", arguments->rungs, "Rungs of SparseServe's ladder: all, or names")
                                   .valueName("RUNG,...")
                                   .needs(search)
                                   .excludes(costsOut);
    const Option trace = sub.add("--trace", arguments->trace,
                                 "Record requests and iterations into this .kvtrace file, a run for each rate")
                             .valueName("FILE")
                             .excludes(rungsOption);
    sub.flag("--overwrite", arguments->overwrite, "Replace the trace file").needs(trace);
    sub.add("--name", arguments->name, "Name of the run in the trace").needs(trace);
    sub.flag("--no-model-path", arguments->noModelPath, "Leave out of the trace where the model lies").needs(trace);
    sub.add("--resume", arguments->resume, "Keep finished points of --rungs in this file and do not try them again")
        .valueName("FILE")
        .needs(rungsOption);
    sub.add("--seeds", arguments->seeds, "Repeat with so many seeds").range(1, 1000).needs(rungsOption);
    return [arguments] { return runLoad(*arguments); };
}

} // namespace kvscope::cli
