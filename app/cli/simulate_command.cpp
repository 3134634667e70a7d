// kvscope-cli simulate: what a workload would find at a server, by the scheduler and a table of costs.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "base/whole_file.h"
#include "core/serve/capacity.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve; // what this command is about

struct SimulateArguments {
    std::string workload, costs, deviceKv = "4G", hostKv = "64G", scratch = "2G", arrivals, slo, rule = "mean-queue",
                                 write;
    std::vector<std::string> settings;
    std::vector<double> rates;
    double scale = 1, outputs = 1, spread = 0, warmUpSeconds = 60, burst = 1, queueSeconds = 2, attainment = 0.9;
    std::string cap;
    int requests = 0, counted = 0, warmUp = 100, seeds = 1;
    std::uint64_t seed = 1;
    bool search = false, json = false, printCosts = false, listKnobs = false, tpot = false;
};

/// "4G", "512MiB", "32K": a number and a binary unit.
std::int64_t amountOf(const char* option, const std::string& text) {
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string unit(end, text.data() + text.size());
    const struct {
        const char *full, *brief;
        int shift;
    } units[] = {{"", "", 0}, {"KiB", "K", 10}, {"MiB", "M", 20}, {"GiB", "G", 30}, {"TiB", "T", 40}};
    if (code == std::errc() && value > 0 && value < 1e15)
        for (const auto& known : units)
            if (unit == known.full || unit == known.brief) {
                const double amount = value * double(std::int64_t(1) << known.shift);
                if (amount >= 1 && amount < 9e18) return std::int64_t(amount);
            }
    throw Error(ErrorKind::BadInput, fmt::format("cannot read {} '{}'", option, text),
                "give a number with K, M, G or T, for example 4G");
}

std::string textOf(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    if (!in) throw Error(ErrorKind::Storage, fmt::format("cannot read the costs '{}'", file));
    return text;
}

/// "ttft=10000,tbt=150" in ms; tbt=25x is so many decode iterations of 32 rows at 4K tokens without a miss.
Slo sloOf(const std::string& text, const SimulateArguments& arguments, const ServiceCosts& costs, Slo slo) {
    slo.tpot = arguments.tpot;
    std::string_view rest = text;
    while (!rest.empty()) {
        std::string_view part = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(part.size() + 1, rest.size()));
        const std::size_t equals = part.find('=');
        const std::string_view key = part.substr(0, equals);
        double value = 0;
        const char* end = nullptr;
        if (equals != std::string_view::npos) {
            const std::string_view number = part.substr(equals + 1);
            end = std::from_chars(number.data(), number.data() + number.size(), value).ptr;
        }
        const char* last = part.data() + part.size();
        const bool multiple = key == "tbt" && end && last - end == 1 && *end == 'x';
        if ((key != "ttft" && key != "tbt") || !end || (end != last && !multiple) || !(value > 0) || value > 1e9)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read --slo '{}'", text),
                        "write --slo ttft=10000,tbt=150 (ms), or tbt=25x for 25 decode iterations");
        if (multiple) value *= costs.decode(32, 32 * 4096, 0, TransferPlan::Kernel);
        (key == "ttft" ? slo.ttftMs : slo.tbtMs) = value;
    }
    return slo;
}

Workload workloadOf(const SimulateArguments& arguments, std::uint64_t seed) {
    Workload workload = arguments.workload == "longmix"
                            ? longmix(arguments.requests > 0 ? arguments.requests : 512, seed)
                            : loadWorkload(arguments.workload);
    if (arguments.spread > 0) spreadArrivals(workload, std::int64_t(arguments.spread * 1000), seed);
    changeLengths(workload,
                  {arguments.scale, arguments.outputs,
                   arguments.cap.empty() ? 0 : int(std::min<std::int64_t>(amountOf("--cap", arguments.cap), 1 << 28))});
    const double recorded = workload.rate();
    if (arguments.arrivals == "poisson") drawArrivals(workload, Arrivals::Poisson, 1, seed);
    if (arguments.arrivals == "gamma") drawArrivals(workload, Arrivals::Gamma, arguments.burst, seed);
    if (arguments.arrivals == "constant") drawArrivals(workload, Arrivals::Constant, 1, seed);
    // New arrivals keep the rate that the file has.
    if (!arguments.arrivals.empty() && arguments.arrivals != "recorded" && workload.rate() > 0)
        changeRate(workload, recorded / workload.rate());
    return workload;
}

SimulationOptions simulationOf(const SimulateArguments& arguments) {
    SimulationOptions options;
    if (!arguments.costs.empty()) options.costs = ServiceCosts::fromJson(textOf(arguments.costs));
    ParameterValues values = schedulerDefaults();
    bool ownTtft = false, ownTbt = false;
    for (const std::string& setting : arguments.settings) {
        const auto equals = setting.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read --set '{}'", setting), "write --set key=value");
        const std::string key = setting.substr(0, equals);
        values.set(schedulerParameters(), key, setting.substr(equals + 1));
        ownTtft |= key == "ttft_bound_ms", ownTbt |= key == "tbt_bound_ms";
    }
    options.scheduler = schedulerOptions(values);
    options.slo = sloOf(arguments.slo, arguments, options.costs,
                        {options.scheduler.ttftBoundMs, options.scheduler.tbtBoundMs, false});
    // What is promised is what the scheduler works for, unless it was told otherwise.
    if (!ownTtft) options.scheduler.ttftBoundMs = options.slo.ttftMs;
    if (!ownTbt) options.scheduler.tbtBoundMs = options.slo.tbtMs;
    options.budget.device = amountOf("--device-kv", arguments.deviceKv);
    options.budget.host = amountOf("--host-kv", arguments.hostKv);
    options.budget.scratch = amountOf("--scratch", arguments.scratch);
    options.counted = arguments.counted;
    options.warmUpRequests = arguments.warmUp, options.warmUpSeconds = arguments.warmUpSeconds;
    return options;
}

CapacityOptions capacityOf(const SimulateArguments& arguments) {
    CapacityOptions options;
    options.rule = arguments.rule == "attainment"     ? CapacityRule::Attainment
                   : arguments.rule == "median-queue" ? CapacityRule::MedianQueue
                                                      : CapacityRule::MeanQueue;
    options.queueMs = arguments.queueSeconds * 1000;
    options.attainment = arguments.attainment;
    return options;
}

Json jsonOf(const Latency& latency) {
    if (latency.samples == 0) return nullptr;
    Json out{{"samples", latency.samples}, {"mean", latency.mean}, {"median", latency.median}, {"max", latency.max}};
    for (const Percentile& p : latency.shown)
        out[fmt::format("p{:g}", p.p * 100)] = Json{{"value", p.value}, {"low", p.low}, {"high", p.high}};
    out["p99_interpolated"] = latency.p99;
    return out;
}

Json jsonOf(const SimulationResult& r, const std::string& broken) {
    const bool promised = r.promisesTtft();
    Json limits = Json::object();
    for (int i = 0; i < kLimits; ++i)
        if (r.limitedBy[std::size_t(i)] > 0) limits[nameOf(Limit(i))] = r.limitedBy[std::size_t(i)];
    return {{"offered_per_s", r.offered},
            {"utilisation", r.utilisation},
            {"busy", r.busy},
            {"ttft_promised", promised},
            {"requests",
             {{"warm_up", r.warmUp},
              {"counted", r.counted},
              {"after", r.after},
              {"finished", r.finished},
              {"refused", r.refused},
              {"good", r.good},
              {"warm_up_short", r.warmUpShort},
              {"warm_up_by_mser5", r.mserWarmUp}}},
            {"window_s", r.seconds},
            {"attainment", promised ? Json(r.attainment) : Json(nullptr)},
            {"goodput_per_s", promised ? Json(r.goodput) : Json(nullptr)},
            {"output_tokens_per_s", r.outputRate},
            {"queue_ms", promised ? jsonOf(r.queue) : Json(nullptr)},
            {"ttft_ms", promised ? jsonOf(r.ttft) : Json(nullptr)},
            {"tbt_ms", jsonOf(r.tbt)},
            {"p99_tbt_of_requests_ms", jsonOf(r.worstTbt)},
            {"tpot_ms", jsonOf(r.tpot)},
            {"e2e_ms", promised ? jsonOf(r.e2e) : Json(nullptr)},
            {"backlog",
             {{"slope_per_s", r.trend.slope},
              {"low", r.trend.low},
              {"high", r.trend.high},
              {"grows", r.trend.grows()},
              {"mean", r.meanInSystem},
              {"by_littles_law", r.littleInSystem}}},
            {"iterations", r.iterations},
            {"decode_rows", r.meanRows},
            {"decode_iteration_ms", r.meanIterationMs},
            {"hit_rate", r.hitRate},
            {"loaded_bytes", r.loadedBytes},
            {"pauses", r.pauses},
            {"paused_longer_than_tbt", r.pausedLongerThanTbt},
            {"iterations_limited_by", limits},
            {"prediction_error_p50", r.predictedError},
            {"broken", broken.empty() ? Json(nullptr) : Json(broken)}};
}

void printLatency(const char* name, const Latency& latency, bool promised) {
    if (!promised) return printOut("  {:<18} not given\n", name);
    if (latency.samples == 0) return printOut("  {:<18} no samples\n", name);
    std::string text;
    for (const Percentile& p : latency.shown)
        text += fmt::format("  P{:g} {:.1f} [{:.1f}, {:.1f}]", p.p * 100, p.value, p.low, p.high);
    printOut("  {:<18} mean {:.1f}{}  max {:.1f} ms of {}\n", name, latency.mean, text, latency.max, latency.samples);
}

void printResult(const SimulationResult& r, const std::string& broken) {
    const bool promised = r.promisesTtft();
    printOut("{:.4g} requests/s offered: utilisation {:.3f}, {}\n", r.offered, r.utilisation,
             broken.empty() ? "every bound kept" : broken);
    printOut("  {} counted in {:.1f} s after {} of warm-up, {} behind them; {} finished, {} refused\n", r.counted,
             r.seconds, r.warmUp, r.after, r.finished, r.refused);
    if (r.warmUpShort)
        printOut("  the warm-up lasted less than five mean times in the system: give --warm-up-seconds\n");
    if (!promised)
        printOut("  no waiting times: {}; near saturation a small error of a cost changes them without bound\n",
                 r.trend.grows() ? "the backlog grows"
                                 : fmt::format("utilisation is above {}", SimulationResult::kPromised));
    printLatency("queue delay", r.queue, promised);
    printLatency("TTFT", r.ttft, promised);
    printLatency("TBT, all tokens", r.tbt, true);
    printLatency("P99 TBT, requests", r.worstTbt, true);
    printLatency("TPOT", r.tpot, true);
    printLatency("E2E", r.e2e, promised);
    if (promised)
        printOut("  attainment {:.3f}, goodput {:.4g} requests/s, {:.1f} tokens/s\n", r.attainment, r.goodput,
                 r.outputRate);
    else
        printOut("  attainment and goodput not given, {:.1f} tokens/s\n", r.outputRate);
    printOut("  backlog {:+.3g} requests/s [{:.3g}, {:.3g}]{}; {:.2f} in the system, {:.2f} by Little's law\n",
             r.trend.slope, r.trend.low, r.trend.high, r.trend.grows() ? ": it grows" : "", r.meanInSystem,
             r.littleInSystem);
    printOut("  {} iterations, busy {:.3f}; decode: {:.1f} rows, {:.2f} ms, hits {:.3f}, {:.1f} MB a step; {} pauses\n",
             r.iterations, r.busy, r.meanRows, r.meanIterationMs, r.hitRate,
             r.iterations > 0 ? r.loadedBytes / 1e6 / double(r.iterations) : 0.0, r.pauses);
    std::string limits;
    for (int i = 1; i < kLimits; ++i)
        if (r.limitedBy[std::size_t(i)] > 0)
            limits += fmt::format("{}{} {:.1f} %", limits.empty() ? "" : ", ", nameOf(Limit(i)),
                                  100.0 * double(r.limitedBy[std::size_t(i)]) / double(r.iterations));
    if (!limits.empty()) printOut("  plans bound by: {}\n", limits);
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
    const std::string fault = writeWholeFile(arguments.write, [&](std::ostream& out) { writeWorkload(workload, out); });
    if (!fault.empty()) throw Error(ErrorKind::Storage, fmt::format("cannot write '{}': {}", arguments.write, fault));
    printErr("{} requests written to {}\n", workload.lines.size(), arguments.write);
    return 0;
}

/// Simulated, seed by seed: one rate after the other, or the search for the largest.
int simulateAll(const SimulateArguments& arguments) {
    SimulationOptions options = simulationOf(arguments);
    const CapacityOptions rule = capacityOf(arguments);
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
                  {"seeds", Json::array()}};
    LongAction action;
    const Progress progress = action.stopping();
    double done = 0;
    options.between = [&] { progress(done, "simulating"); };
    std::vector<double> capacities;
    for (int s = 0; s < arguments.seeds; ++s) {
        done = double(s) / arguments.seeds;
        const std::uint64_t seed = arguments.seed + std::uint64_t(s);
        const Workload workload = workloadOf(arguments, seed);
        Json entry{{"seed", seed}, {"points", Json::array()}};
        if (!arguments.json && arguments.seeds > 1) printOut("seed {}\n", seed);
        if (arguments.search) {
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
            if (!arguments.json)
                printOut("capacity {:.4g} requests/s by {}: above it {}\n", capacity.rate, nameOf(rule.rule),
                         capacity.broken);
        } else {
            for (const double rate : arguments.rates.empty() ? std::vector<double>{workload.rate()} : arguments.rates) {
                progress(done, fmt::format("{:.4g} requests/s", rate));
                Workload scaled = workload;
                changeRate(scaled, rate / workload.rate());
                const SimulationResult result = simulate(scaled, options);
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
    return 0;
}

int runSimulate(const SimulateArguments& arguments) {
    if (arguments.listKnobs) return listKnobs(arguments.json);
    if (arguments.printCosts) {
        const ServiceCosts costs =
            arguments.costs.empty() ? ServiceCosts() : ServiceCosts::fromJson(textOf(arguments.costs));
        printOut("{}\n", costs.toJson());
        return 0;
    }
    if (arguments.workload.empty())
        throw Error(ErrorKind::BadInput, "no workload is named", "give --workload FILE or --workload longmix");
    return arguments.write.empty() ? simulateAll(arguments) : writeLines(arguments);
}

} // namespace

Command addSimulate(Options& program) {
    auto arguments = std::make_shared<SimulateArguments>();
    Options sub =
        program.command("simulate", "Simulate a server: waiting, times between tokens and capacity of a workload");
    sub.add("--workload", arguments->workload, "A JSONL file, or longmix").valueName("FILE");
    const Option rate =
        sub.add("--rate", arguments->rates, "Requests per second, e.g. 0.5,1,2; default: the workload's")
            .commaSeparated()
            .range(1e-6, 1e5);
    const Option search =
        sub.flag("--search", arguments->search, "Find the largest rate that keeps the bounds").excludes(rate);
    sub.add("--rule", arguments->rule, "What a rate has to keep")
        .oneOf({"mean-queue", "median-queue", "attainment"})
        .showsDefault();
    sub.add("--queue", arguments->queueSeconds, "Bound of mean-queue and median-queue, seconds")
        .positive()
        .showsDefault();
    sub.add("--attainment", arguments->attainment, "Bound of attainment").range(0.0, 1.0).showsDefault();
    sub.add("--slo", arguments->slo, "ttft=MS,tbt=MS; tbt=25x is 25 decode iterations of 32 rows");
    sub.flag("--tpot", arguments->tpot, "A request keeps tbt by its mean gap, not by the 99th percentile");
    sub.add("--set", arguments->settings, "A knob of the scheduler, key=value; --list-knobs lists them");
    sub.add("--costs", arguments->costs, "What an iteration costs, a JSON file").valueName("FILE");
    sub.add("--device-kv", arguments->deviceKv, "Device memory for KV and index").showsDefault();
    sub.add("--host-kv", arguments->hostKv, "Host memory for KV").showsDefault();
    sub.add("--scratch", arguments->scratch, "Device memory for prompts that are being read").showsDefault();
    sub.add("--arrivals", arguments->arrivals, "Draw arrivals anew at the workload's rate, or take them as recorded")
        .oneOf({"recorded", "poisson", "gamma", "constant"});
    sub.add("--burst", arguments->burst, "Shape of gamma arrivals: 0.25 doubles the variation, 1 is Poisson")
        .positive();
    sub.add("--spread", arguments->spread, "Spread arrivals of a file over buckets of so many ms").positive();
    sub.add("--scale", arguments->scale, "Divide prompts by this and outputs by half of it").positive();
    sub.add("--outputs", arguments->outputs, "Multiply outputs by this").positive();
    sub.add("--cap", arguments->cap, "Longest prompt in tokens, e.g. 32K");
    sub.add("--requests", arguments->requests, "Requests of longmix; default: 512").range(1, 10'000'000);
    sub.add("--counted", arguments->counted, "Requests of the window; default: the workload once").range(1, 10'000'000);
    sub.add("--warm-up", arguments->warmUp, "Requests before the window, at least").range(0, 10'000'000).showsDefault();
    sub.add("--warm-up-seconds", arguments->warmUpSeconds, "Seconds before the window, at least")
        .range(0.0, 86400.0)
        .showsDefault();
    sub.add("--seed", arguments->seed, "Of lengths and arrivals").showsDefault();
    sub.add("--seeds", arguments->seeds, "Repeat with so many seeds, one after the other").range(1, 1000);
    sub.add("--write", arguments->write, "Write the workload as JSONL and simulate nothing")
        .valueName("FILE")
        .excludes(search);
    sub.flag("--print-costs", arguments->printCosts, "Print the table of costs as JSON");
    sub.flag("--list-knobs", arguments->listKnobs, "Print the scheduler's knobs");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return runSimulate(*arguments); };
}

} // namespace kvscope::cli
