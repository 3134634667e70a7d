// kvscope-cli load --rungs: the ladder of SparseServe with the costs and the times of an engine in this process.
#include "app/cli/load_arguments.h"
#include "app/cli/long_action.h"
#include "app/cli/serving_report.h"
#include "app/terminal/output.h"

#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace kvscope::cli {

using Json = nlohmann::ordered_json;
using namespace serve;

namespace {

/// What all rungs of the ladder use: one engine for each of the two methods.
struct LadderEngines {
    EngineOptions sparse, full;

    EngineOptions onThe(const Rung& rung) const {
        EngineOptions engine = rung.sparse ? sparse : full;
        engine.scheduler = onRung(rung, engine.scheduler);
        if (poolMissing(rung)) { // what +partition has
            engine.scheduler.cache = CachePlan::Partition;
            if (engine.scheduler.partitionBlocks == 0) engine.scheduler.partitionBlocks = 1;
        }
        return engine;
    }

    /// Whether the rung asks for one pool for all rows, which a GPU does not have.
    bool poolMissing(const Rung& rung) const {
        return sparse.session.backend == Backend::Cuda && rung.offload && rung.cache == CachePlan::GlobalLru;
    }

    /// Measures the costs of both methods with everything resident, or takes those that are finished already. `own`
    /// false: the sparse method has a table of costs, from which those of full attention follow.
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

} // namespace

int climbRungs(const LoadArguments& arguments) {
    Ladder ladder(arguments, arguments.ladder, "--knob");
    const ServingChoices choices = servingChoices(arguments, costsOf(arguments));
    LadderEngines engines{engineOfLoad(arguments, choices), engineOfLoad(arguments, choices)};
    engines.full.session.method = "full", engines.full.session.settings.clear();
    const std::shared_ptr<const Model> model = loadModel(arguments.model, arguments.calibration);
    const SplicedPrompts prompts(*model);
    LongAction action;
    const Progress progress = action.stopping();
    LoadOptions options = loadOptions(choices, prompts);
    Json document{{"workload", arguments.workload}, {"requests", arguments.requests},
                  {"scale", arguments.scale},       {"outputs", arguments.outputs},
                  {"cap", arguments.cap},           {"arrivals", arguments.arrivals},
                  {"counted", arguments.counted},   {"warm_up", arguments.warmUp},
                  {"knobs", arguments.knobs},       {"model", model->name()},
                  {"method", arguments.method},     {"settings", arguments.settings},
                  {"slo", arguments.slo},           {"device_kv", arguments.deviceKv},
                  {"host_kv", arguments.hostKv},    {"costs_from", arguments.costs}};
    FinishedPoints finished(arguments.ladder.resume, document);
    ladder.finished = &finished;
    options.between = [&](double) { progress(0, "measuring what iterations cost"); };
    engines.findCosts(model, options, arguments.costs.empty(), finished);
    // tbt=25x counts steps of this engine
    const ServingChoices bounded = servingChoices(arguments, engines.sparse.costs);
    engines.sparse.scheduler = engines.full.scheduler = bounded.scheduler;
    static_cast<WindowOptions&>(options) = bounded.window;
    ladder.simulation = [&](const Rung& rung) { return simulationOf(engines.onThe(rung), options); };
    ladder.measured = [&](const Rung& rung, std::uint64_t seed, double rate) {
        Workload scaled = ladder.workloads.at(seed);
        changeRate(scaled, rate / scaled.rate());
        const EngineOptions engine = engines.onThe(rung);
        options.between = [&](double done) { progress(done, fmt::format("{} at {:.4g} requests/s", rung.name, rate)); };
        const LoadResult result = load(model, scaled, engine, options);
        const std::string broken = brokenBound(result.numbers, simulationOf(engine, options), ladder.rule);
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

} // namespace kvscope::cli
