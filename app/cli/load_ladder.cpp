// kvscope-cli load --rungs: the ladder of SparseServe with the costs and the times of an engine in this process.
#include "app/cli/load_arguments.h"
#include "app/cli/long_action.h"
#include "app/cli/serving_report.h"
#include "app/terminal/output.h"
#include "core/serve/planted_hits.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::cli {

using Json = nlohmann::ordered_json;
using namespace serve;

namespace {

/// What all rungs of the ladder use: one engine for each of the two methods, and of the sparse one a table of costs for
/// each way to offload.
struct LadderEngines {
    EngineOptions sparse, full;
    std::map<std::string, ServiceCosts> offloading = {}; // by wayOf(); empty: the sparse method's table holds for all

    EngineOptions onThe(const Rung& rung) const {
        EngineOptions engine = rung.sparse ? sparse : full;
        engine.scheduler = onRung(rung, engine.scheduler);
        if (const auto costs = offloading.find(wayOf(engine)); costs != offloading.end()) engine.costs = costs->second;
        return engine;
    }
    /// How the engine offloads, in words; empty: not at all. On the CPU all transfers are one.
    static std::string wayOf(const EngineOptions& engine) {
        const SchedulerOptions& knobs = engine.scheduler;
        if (!knobs.offload) return {};
        const std::string cache = choiceName("cache", int(knobs.cache));
        if (engine.session.backend == Backend::Cpu) return cache;
        return fmt::format("{}, {}", cache, choiceName("transfers", int(knobs.transfers)));
    }

    /// Measures the costs of both methods with everything resident and of every way to offload that the rungs have, or
    /// takes those that are finished already. `own` false: the sparse method has a table of costs, from which those of
    /// full attention follow. workload: whose contexts planted selections are made for.
    void findCosts(const std::shared_ptr<const Model>& model, const LoadOptions& options, bool own,
                   const std::vector<Rung>& climbed, const Workload& workload, FinishedPoints& finished) {
        if (!own) {
            full.costs = costsOnRung(rungs().front(), sparse.costs);
            return;
        }
        const auto once = [&](const std::string& what, const std::function<ServiceCosts()>& measured) {
            const std::string key = "costs of " + what;
            if (!finished.find(key)) finished.add(key, Json::parse(measured().toJson()));
            return ServiceCosts::fromJson(finished.find(key)->dump(), finished.file());
        };
        for (EngineOptions* engine : {&sparse, &full})
            engine->costs = once(engine->session.method, [&] {
                EngineOptions resident = *engine;
                resident.scheduler.offload = false;
                ServiceCosts costs = measureCosts(model, resident, options);
                if (const std::vector<double>& planted = engine->planted; !planted.empty())
                    plantHits(costs, 1 - std::accumulate(planted.begin(), planted.end(), 0.0) / double(planted.size()),
                              workload);
                return costs;
            });
        for (const Rung& rung : climbed) {
            const EngineOptions engine = onThe(rung);
            const std::string way = wayOf(engine);
            if (way.empty() || offloading.contains(way)) continue;
            ServiceCosts costs = once(fmt::format("{}, {}", engine.session.method, way),
                                      [&] { return measureOffload(model, engine, options, sparse.costs); });
            if (engine.session.backend == Backend::Cpu) { // for the transfers of the other rungs
                const auto transfers = std::size_t(engine.scheduler.transfers);
                std::ranges::fill(costs.linkGbps, costs.linkGbps[transfers]);
                std::ranges::fill(costs.offloadMs, costs.offloadMs[transfers]);
                std::ranges::fill(costs.offloadUsPerRow, costs.offloadUsPerRow[transfers]);
            }
            offloading.emplace(way, std::move(costs));
        }
    }
    /// The tables of the ways to offload, by their words.
    Json offloadingJson() const {
        Json tables = Json::object();
        for (const auto& [way, costs] : offloading) tables[way] = Json::parse(costs.toJson());
        return tables;
    }
};

} // namespace

int climbRungs(const LoadArguments& arguments) {
    Ladder ladder(arguments, arguments.ladder, "--knob");
    const CostTable table = costTableOf(arguments);
    for (const Rung& rung : ladder.rungs)
        rung.sparse ? refuseSparseBy(table, arguments) : refuseFullAttentionBy(table, arguments);
    const ServingChoices choices = servingChoices(arguments, table.costs);
    LadderEngines engines{engineOfLoad(arguments, choices), engineOfLoad(arguments, choices)};
    engines.full.session.method = "full", engines.full.session.settings.clear();
    engines.full.planted.clear(); // it selects nothing
    const std::shared_ptr<const Model> model = loadModel(arguments.model, arguments.calibration);
    remarkOnShape(arguments, table.costs, *model);
    const SplicedPrompts prompts(*model);
    LongAction action;
    engines.sparse.stop = engines.full.stop = action.stop();
    const Progress progress = action.stopping();
    LoadOptions options = loadOptions(choices, prompts);
    Json document{{"workload", arguments.workload},
                  {"requests", arguments.requests},
                  {"scale", arguments.scale},
                  {"outputs", arguments.outputs},
                  {"cap", arguments.cap},
                  {"arrivals", arguments.arrivals},
                  {"counted", arguments.counted},
                  {"warm_up", arguments.warmUp},
                  {"knobs", arguments.knobs},
                  {"model", model->name()},
                  {"method", arguments.method},
                  {"settings", arguments.settings},
                  {"slo", arguments.slo},
                  {"device_kv", arguments.deviceKv},
                  {"host_kv", arguments.hostKv},
                  {"costs_from", arguments.costs},
                  {"costs_version", ServiceCosts::kVersion}};
    options.processorTime = arguments.processorTime;
    ladder.rule = capacityOf(arguments.capacity);
    const CapacityArguments usual; // files of older builds have no rule
    if (arguments.capacity.rule != usual.rule || arguments.capacity.queueSeconds != usual.queueSeconds ||
        arguments.capacity.attainment != usual.attainment)
        document["rule"] = {{"name", arguments.capacity.rule},
                            {"queue_s", arguments.capacity.queueSeconds},
                            {"attainment", arguments.capacity.attainment}};
    if (options.processorTime) document["clock"] = "processor";
    if (!arguments.planted.empty()) document["planted"] = arguments.planted;
    FinishedPoints finished(arguments.ladder.resume, document);
    ladder.finished = &finished;
    options.between = [&](double) { progress(0, "measuring what iterations cost"); };
    engines.findCosts(model, options, arguments.costs.empty(), ladder.rungs, ladder.workloads.begin()->second,
                      finished);
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
    if (!engines.offloading.empty()) document["costs_offloading"] = engines.offloadingJson();
    document.update(climb(ladder, !arguments.json));
    action.clear();
    if (arguments.json)
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printOut(
            "capacities simulated with costs measured on {}{}, TBT bound {:.4g} ms; lines that begin with measured "
            "are the engine's{}\n",
            model->name(), arguments.planted.empty() ? "" : ", planted selections", options.slo.tbtMs,
            options.processorTime ? ", by processor time" : "");
    return 0;
}

} // namespace kvscope::cli
