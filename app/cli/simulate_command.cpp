// kvscope-cli simulate: what would become of a workload at a server, by the scheduler and a table of costs.
#include "app/cli/commands.h"
#include "app/cli/ladder.h"
#include "app/cli/long_action.h"
#include "app/cli/result_file.h"
#include "app/cli/serving_options.h"
#include "app/cli/serving_report.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/serve/capacity.h"
#include "core/serve/engine_checks.h"
#include "profiler/read/trace_reader.h"
#include "profiler/replay/hit_curves.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve;

struct SimulateArguments : ServingArguments {
    std::string write, selections;
    CapacityArguments capacity;
    bool printCosts = false, listKnobs = false;
    LadderArguments ladder;
};

/// The table of costs, with the hits of recorded selections where a trace of them is named.
CostTable costsAndHits(const SimulateArguments& arguments) {
    CostTable table = costTableOf(arguments);
    if (arguments.selections.empty()) return table;
    ServiceCosts& costs = table.costs;
    const TraceReader reader(arguments.selections);
    const std::vector<RunRow> runs = reader.runs();
    if (runs.empty()) throw Error(ErrorKind::BadInput, fmt::format("'{}' has no runs", arguments.selections));
    const HitCurves hits = hitCurvesOf(loadSelectionTrace(reader, runs.back().runId));
    std::vector<std::string> recorded{"lru_hits", "drift"};
    costs.lruHits.points = hits.pool, costs.drift = hits.drift;
    if (!hits.partition.empty()) costs.partitionHits.points = hits.partition, recorded.emplace_back("partition_hits");
    for (const std::string& key : recorded)
        if (!table.owns(key)) table.own.push_back(key);
    return table;
}

/// The keys that such a server's times come from and that a table with a list `fitted` does not have in it: defaults.
std::vector<std::string> unmeasured(const CostTable& table, const std::vector<SchedulerOptions>& servers) {
    std::vector<std::string> keys{"decode_ms",
                                  "decode_us_per_ktoken",
                                  "prefill_us_per_token",
                                  "prefill_ps_per_token2",
                                  "plan_ms",
                                  "gap_ms",
                                  "gap_us_per_row",
                                  "admit_ms",
                                  "admit_us_per_token",
                                  "between_ms",
                                  "between_us_per_row",
                                  "request_ms"};
    const auto any = [&](auto&& holds) { return std::any_of(servers.begin(), servers.end(), holds); };
    if (any([](const SchedulerOptions& server) { return server.offload; }))
        keys.insert(keys.end(), {"link_gbps", "offload_ms", "offload_us_per_row"});
    if (any([](const SchedulerOptions& server) { return server.offload && server.cache == CachePlan::GlobalLru; }))
        keys.insert(keys.end(), {"drift", "lru_hits"});
    if (any([](const SchedulerOptions& server) { return server.offload && server.cache == CachePlan::Partition; }))
        keys.emplace_back("partition_hits");
    std::erase_if(keys, [&](const std::string& key) { return !table.listed || table.owns(key); });
    return keys;
}

void remarkOnDefaults(const SimulateArguments& arguments, const std::vector<std::string>& keys) {
    if (!keys.empty())
        printErr("not measured in {}, and the defaults of a table of an H200: {}\n", arguments.costs,
                 fmt::join(keys, ", "));
}

/// The refusal of a prompt of one token with one new token; Limit::None: it fits.
Refusal smallestRefusal(const SimulationOptions& options) {
    ServeRequest smallest;
    smallest.promptTokens = smallest.maxTokens = 1;
    smallest.needs = options.costs.shape.needsOf(options.scheduler, 1, 1);
    smallest.workingSetBytes = options.costs.shape.firstWorkingSet(options.scheduler, 2);
    Budget budget = options.budget;
    budget.rows = options.scheduler.rows;
    return Scheduler(options.scheduler, options.costs).neverFits(budget, smallest);
}

SimulationOptions simulationOf(const SimulateArguments& arguments, const CostTable& table) {
    const ServingChoices choices = servingChoices(arguments, table.costs);
    SimulationOptions options;
    static_cast<WindowOptions&>(options) = choices.window;
    options.scheduler = choices.scheduler, options.budget = choices.budget, options.costs = choices.costs;
    return options;
}

int listKnobs(bool json) {
    if (json) {
        Json list = Json::array();
        for (const Parameter& p : schedulerParameters()) {
            const bool numeric = p.type == ParameterType::Integer || p.type == ParameterType::Number;
            list.push_back({{"key", p.key},
                            {"type", nameOf(p.type)},
                            {"default", p.defaultValue},
                            {"min", numeric ? Json(p.min) : Json(nullptr)},
                            {"max", numeric ? Json(p.max) : Json(nullptr)},
                            {"unit", p.unit},
                            {"help", p.help},
                            {"choices", p.choices}});
        }
        printOut("{}\n", list.dump(2));
        return 0;
    }
    printOut("| key | default | range | unit | meaning |\n| --- | --- | --- | --- | --- |\n");
    for (const Parameter& p : schedulerParameters()) {
        const std::string range = p.type == ParameterType::Boolean  ? "true, false"
                                  : p.type == ParameterType::Choice ? fmt::format("{}", fmt::join(p.choices, ", "))
                                                                    : fmt::format("{} to {}", p.min, p.max);
        printOut("| `{}` | {} | {} | {} | {} |\n", p.key, p.defaultValue, range, p.unit, p.help);
    }
    return 0;
}

int writeLines(const SimulateArguments& arguments) {
    const Workload workload = workloadOf(arguments, arguments.seed);
    writeResultFile(arguments.write, [&](std::ostream& out) { writeWorkload(workload, out); });
    printErr("{} requests written to {}\n", workload.lines.size(), arguments.write);
    return 0;
}

Json settingsOf(const SimulateArguments& arguments, const SimulationOptions& options) {
    return {{"workload", arguments.workload},
            {"requests", arguments.requests},
            {"scale", arguments.scale},
            {"outputs", arguments.outputs},
            {"cap", arguments.cap},
            {"arrivals", arguments.arrivals},
            {"burst", arguments.burst},
            {"spread", arguments.spread},
            {"counted", options.counted},
            {"warm_up", options.warmUpRequests},
            {"warm_up_s", options.warmUpSeconds},
            {"knobs", arguments.knobs},
            {"slo",
             {{"ttft_ms", options.slo.ttftMs},
              {"tbt_ms", options.slo.tbtMs},
              {"tbt_of", options.slo.tpot ? "mean" : "p99"}}},
            {"rule", arguments.capacity.rule},
            {"queue_s", arguments.capacity.queueSeconds},
            {"attainment", arguments.capacity.attainment},
            {"device_kv_bytes", options.budget.device},
            {"host_kv_bytes", options.budget.host},
            {"scratch_bytes", options.budget.scratch},
            {"selections", arguments.selections},
            {"costs", Json::parse(options.costs.toJson())}};
}

/// Simulates seed by seed: one rate after the other, or a search for the largest rate that holds.
int simulateAll(const SimulateArguments& arguments) {
    const CostTable table = costsAndHits(arguments);
    SimulationOptions options = simulationOf(arguments, table);
    checkSmallestRequest(smallestRefusal(options));
    const std::vector<std::string> defaults = unmeasured(table, {options.scheduler});
    const CapacityOptions rule = capacityOf(arguments.capacity);
    Json document{{"workload", arguments.workload},
                  {"simulated", true},
                  {"slo",
                   {{"ttft_ms", options.slo.ttftMs},
                    {"tbt_ms", options.slo.tbtMs},
                    {"tbt_of", options.slo.tpot ? "mean" : "p99"}}},
                  {"device_kv_bytes", options.budget.device},
                  {"host_kv_bytes", options.budget.host},
                  {"scratch_bytes", options.budget.scratch},
                  {"costs", Json::parse(options.costs.toJson())},
                  {"costs_not_measured", defaults},
                  {"seeds", Json::array()}};
    const std::vector<Workload> workloads = workloadsOf(arguments, arguments.seed, arguments.ladder.seeds);
    LongAction action;
    const Progress progress = action.stopping();
    double done = 0;
    options.between = [&] { progress(done, "simulating"); };
    std::vector<double> capacities;
    for (int s = 0; s < arguments.ladder.seeds; ++s) {
        done = double(s) / arguments.ladder.seeds;
        const std::uint64_t seed = arguments.seed + std::uint64_t(s);
        const Workload& workload = workloads[std::size_t(s)];
        Json entry{{"seed", seed}, {"points", Json::array()}};
        if (!arguments.json && arguments.ladder.seeds > 1) printOut("seed {}\n", seed);
        if (arguments.ladder.search) {
            const Capacity capacity = findCapacity(workload, options, rule, [&](const CapacityPoint& point) {
                progress(done, fmt::format("{:.4g} requests/s", point.rate));
                if (!arguments.json) {
                    action.clear();
                    printOut("{:>10.4g} requests/s  utilisation {:.3f}  {}\n", point.rate, point.result.utilisation,
                             point.broken.empty() ? "holds" : point.broken);
                }
                entry["points"].push_back(jsonOf(point.result, point.broken));
            });
            capacities.push_back(capacity.rate);
            entry["capacity_per_s"] = capacity.rate;
            entry["broke_first"] = capacity.broken;
            if (!arguments.json && capacity.rate > 0)
                printOut("capacity {:.4g} requests/s by {}: above it {}\n", capacity.rate, nameOf(rule.rule),
                         capacity.broken);
            else if (!arguments.json)
                printOut("no rate keeps the bounds: {}\n", capacity.broken);
        } else {
            for (const double rate : arguments.rates.empty() ? std::vector<double>{workload.rate()} : arguments.rates) {
                progress(done, fmt::format("{:.4g} requests/s", rate));
                Workload scaled = workload;
                changeRate(scaled, rate / workload.rate());
                const ServingResult result = simulate(scaled, options);
                const std::string broken = brokenBound(result, options, rule);
                entry["points"].push_back(jsonOf(result, broken));
                if (arguments.json) continue;
                action.clear();
                printResult(result, broken);
            }
        }
        document["seeds"].push_back(std::move(entry));
    }
    action.clear();
    if (arguments.json) {
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        if (capacities.size() > 1) {
            const auto [low, high] = std::minmax_element(capacities.begin(), capacities.end());
            printOut("capacity of {} seeds: {:.4g} to {:.4g} requests/s\n", capacities.size(), *low, *high);
        }
        printOut("all simulated: docs/serving.md says from what\n");
    }
    remarkOnDefaults(arguments, defaults);
    return 0;
}

/// Searches the capacity of every rung of the ladder.
int climbRungs(const SimulateArguments& arguments) {
    Ladder ladder(arguments, arguments.ladder, "--set");
    const CostTable table = costsAndHits(arguments);
    const SimulationOptions base = simulationOf(arguments, table); // the bounds are the same on all rungs
    std::vector<SchedulerOptions> servers;
    Refusal refusal; // of the last rung, where none holds a request
    bool holdsAny = false;
    for (const Rung& rung : ladder.rungs) {
        rung.sparse ? refuseSparseBy(table, arguments) : refuseFullAttentionBy(table, arguments);
        SimulationOptions options = base;
        options.scheduler = onRung(rung, base.scheduler), options.costs = costsOnRung(rung, base.costs);
        refusal = smallestRefusal(options), holdsAny |= refusal.limit == Limit::None;
        servers.push_back(options.scheduler);
    }
    if (!holdsAny) checkSmallestRequest(refusal);
    const std::vector<std::string> defaults = unmeasured(table, servers);
    ladder.rule = capacityOf(arguments.capacity);
    Json document = settingsOf(arguments, base);
    FinishedPoints finished(arguments.ladder.resume, document);
    ladder.finished = &finished;
    LongAction action;
    ladder.simulation = [&](const Rung& rung) {
        SimulationOptions options = base;
        options.scheduler = onRung(rung, base.scheduler);
        options.costs = costsOnRung(rung, base.costs);
        return options;
    };
    ladder.progress = action.stopping();
    ladder.clearProgress = [&] { action.clear(); };
    document["simulated"] = true;
    document["costs_not_measured"] = defaults;
    document.update(climb(ladder, !arguments.json));
    action.clear();
    if (arguments.json)
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printOut("all simulated, TBT bound {:.4g} ms: docs/serving.md says from what\n", base.slo.tbtMs);
    remarkOnDefaults(arguments, defaults);
    return 0;
}

int runSimulate(const SimulateArguments& arguments, const Options& command) {
    if (arguments.listKnobs) return listKnobs(arguments.json);
    if (arguments.printCosts) {
        printOut("{}\n", costsAndHits(arguments).toJson());
        return 0;
    }
    if (arguments.workload.empty())
        throw Error(ErrorKind::BadInput, "no workload is named", "give --workload FILE or --workload longmix");
    refuseVainWorkload(command, arguments);
    if (!arguments.write.empty()) return writeLines(arguments);
    refuseVainCapacity(command, arguments.capacity);
    return arguments.ladder.rungs.empty() ? simulateAll(arguments) : climbRungs(arguments);
}

} // namespace

Command addSimulate(Options& program) {
    auto arguments = std::make_shared<SimulateArguments>();
    Options sub =
        program.command("simulate", "Simulate a server: waiting, times between tokens and capacity of a workload");
    const Option rate = addServingOptions(sub, *arguments);
    const Option search =
        sub.flag("--search", arguments->ladder.search, "Find the largest rate that keeps the bounds").excludes(rate);
    addCapacityOptions(sub, arguments->capacity);
    addLadderOptions(sub, arguments->ladder, "The capacity of each rung of SparseServe's ladder: all, or names",
                     search);
    sub.add("--seeds", arguments->ladder.seeds, "Repeat with so many seeds, one after the other").range(1, 1000);
    const Option write = sub.add("--write", arguments->write, "Write the workload as JSONL and simulate nothing")
                             .valueName("FILE")
                             .excludes(search);
    const Option costs = sub.flag("--print-costs", arguments->printCosts, "Print the table of costs as JSON");
    const Option knobs = sub.flag("--list-knobs", arguments->listKnobs, "Print the scheduler's knobs");
    sub.excludeAllBut(write, {"--workload", "--arrivals", "--burst", "--spread", "--scale", "--outputs", "--cap",
                              "--requests", "--seed"});
    sub.add("--selections", arguments->selections,
            "Take hits and drift from the recorded selections of a trace's last run, not from a synthetic stream")
        .valueName("TRACE");
    sub.excludeAllBut(costs, {"--costs", "--selections", "--json"});
    sub.excludeAllBut(knobs, {"--json"});
    return [arguments, sub] { return runSimulate(*arguments, sub); };
}

} // namespace kvscope::cli
