// kvscope-cli load --rungs: the ladder of SparseServe with the costs and the times of an engine in this process.
#include "app/cli/load_arguments.h"
#include "app/cli/long_action.h"
#include "app/cli/serving_report.h"
#include "app/terminal/output.h"
#include "core/serve/planted_hits.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
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
        return engine;
    }

    /// Measures the costs of both methods with everything resident, or takes those that are finished already. `own`
    /// false: the sparse method has a table of costs, from which those of full attention follow. workload: whose
    /// contexts planted selections are made for.
    void findCosts(const std::shared_ptr<const Model>& model, const LoadOptions& options, bool own,
                   const Workload& workload, FinishedPoints& finished) {
        if (!own) {
            full.costs = costsOnRung(rungs().front(), sparse.costs);
            return;
        }
        for (EngineOptions* engine : {&sparse, &full}) {
            const std::string key = "costs of " + engine->session.method;
            if (!finished.find(key)) {
                EngineOptions resident = *engine;
                resident.scheduler.offload = false;
                ServiceCosts costs = measureCosts(model, resident, options);
                // Nothing crossed the link of a GPU, so that these times hold none of it.
                if (engine->session.backend == Backend::Cuda)
                    std::copy(std::begin(engine->costs.linkGbps), std::end(engine->costs.linkGbps), costs.linkGbps);
                if (const std::vector<double>& planted = engine->planted; !planted.empty())
                    plantHits(costs, 1 - std::accumulate(planted.begin(), planted.end(), 0.0) / double(planted.size()),
                              workload);
                finished.add(key, Json::parse(costs.toJson()));
            }
            engine->costs = ServiceCosts::fromJson(finished.find(key)->dump(), finished.file());
        }
    }
};

} // namespace

int climbRungs(const LoadArguments& arguments) {
    Ladder ladder(arguments, arguments.ladder, "--knob");
    const ServingChoices choices = servingChoices(arguments, costsOf(arguments));
    LadderEngines engines{engineOfLoad(arguments, choices), engineOfLoad(arguments, choices)};
    engines.full.session.method = "full", engines.full.session.settings.clear();
    engines.full.planted.clear(); // it selects nothing
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
    if (!arguments.planted.empty()) document["planted"] = arguments.planted;
    FinishedPoints finished(arguments.ladder.resume, document);
    ladder.finished = &finished;
    options.between = [&](double) { progress(0, "measuring what iterations cost"); };
    engines.findCosts(model, options, arguments.costs.empty(), ladder.workloads.begin()->second, finished);
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
        printOut(
            "capacities simulated with costs measured on {}{}, TBT bound {:.4g} ms; lines that begin with measured "
            "are the engine's\n",
            model->name(), arguments.planted.empty() ? "" : ", planted selections", options.slo.tbtMs);
    return 0;
}

} // namespace kvscope::cli
