#include "app/cli/serving_options.h"

#include "app/cli/recorded_workload.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "base/error.h"
#include "base/text_file.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using namespace serve;

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestCosts = std::size_t(16) << 20; // bytes

/// Reads "ttft=10000,tbt=150", in ms. tbt=25x stands for 25 decode iterations of 32 rows at 4K tokens without a miss.
Slo sloOf(const std::string& text, const ServingArguments& arguments, const ServiceCosts& costs, Slo slo) {
    slo.tpot = arguments.tpot;
    if (text.empty()) return slo; // not given
    std::vector<std::string_view> keys;
    for (const std::string& listed : listedValues("--slo", text)) {
        const std::string_view part = listed;
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
        keys.push_back(key == "ttft" ? "ttft" : "tbt");
        refuseRepeated("--slo", keys);
        if (multiple) value *= costs.residentDecode(32, 32 * 4096);
        (key == "ttft" ? slo.ttftMs : slo.tbtMs) = value;
    }
    return slo;
}

bool isDrawn(const ServingArguments& arguments) { return arguments.workload == "longmix"; }

Workload drawn(const ServingArguments& arguments, std::uint64_t seed) {
    return longmix(arguments.requests > 0 ? arguments.requests : 512, seed);
}

Workload fileOf(const ServingArguments& arguments) {
    return isTraceName(arguments.workload) ? recordedWorkload(arguments.workload) : loadWorkload(arguments.workload);
}

/// What the options make of a workload that they name.
Workload changed(Workload workload, const ServingArguments& arguments, std::uint64_t seed) {
    if (arguments.spread > 0) spreadArrivals(workload, std::int64_t(arguments.spread * 1000), seed);
    changeLengths(workload,
                  {arguments.scale, arguments.outputs,
                   arguments.cap.empty() ? 0 : int(std::min<std::int64_t>(amountOf("--cap", arguments.cap), 1 << 28))});
    const double recorded = workload.rate();
    if (arguments.arrivals == "poisson") drawArrivals(workload, Arrivals::Poisson, 1, seed);
    if (arguments.arrivals == "gamma") drawArrivals(workload, Arrivals::Gamma, arguments.burst, seed);
    if (arguments.arrivals == "constant") drawArrivals(workload, Arrivals::Constant, 1, seed);
    // Arrivals that are drawn anew keep the rate of the file.
    if (!arguments.arrivals.empty() && arguments.arrivals != "recorded" && workload.rate() > 0)
        changeRate(workload, recorded / workload.rate());
    return workload;
}

} // namespace

void refuseVainWorkload(const Options& command, const ServingArguments& arguments) {
    refuseRepeated("--rate", arguments.rates);
    refuseVain(arguments.arrivals != "gamma", command, {"--burst"}, "without --arrivals gamma");
    refuseVain(!arguments.workload.empty() && arguments.workload != "longmix", command, {"--requests"},
               "on the workload of a file, which has the requests that it has");
    refuseVain(arguments.workload == "longmix", command, {"--spread"}, "on longmix, whose arrivals are drawn");
    if (arguments.workload == "longmix" && arguments.arrivals == "recorded")
        throw Error(ErrorKind::BadInput, "longmix has no recorded arrivals: they are drawn",
                    "leave --arrivals recorded out, or name another of its values");
    refuseVain(arguments.arrivals == "poisson" || arguments.arrivals == "gamma" || arguments.arrivals == "constant",
               command, {"--spread"}, "where --arrivals draws the times anew");
}

bool CostTable::owns(std::string_view key) const { return std::find(own.begin(), own.end(), key) != own.end(); }

std::string CostTable::toJson() const {
    Json table = Json::parse(costs.toJson());
    if (listed) table["fitted"] = own;
    if (!method.empty()) table["method"] = method;
    return table.dump(2);
}

CostTable costTableOf(const ServingArguments& arguments) {
    CostTable table;
    if (arguments.costs.empty()) return table;
    const std::string text = readTextFile(arguments.costs, "the table of costs", kLongestCosts);
    table.costs = ServiceCosts::fromJson(text, arguments.costs);
    const nlohmann::json document = nlohmann::json::parse(text);
    table.listed = document.contains("fitted");
    table.method = document.value("method", std::string());
    if (table.listed) {
        table.own = document["fitted"].get<std::vector<std::string>>();
    } else {
        const Json defaults = Json::parse(ServiceCosts().toJson()), numbers = Json::parse(table.costs.toJson());
        for (const auto& item : numbers.items())
            if (item.key() != "shape" && item.value() != defaults[item.key()]) table.own.push_back(item.key());
    }
    return table;
}

ServiceCosts costsOf(const ServingArguments& arguments) { return costTableOf(arguments).costs; }

void refuseFullAttentionBy(const CostTable& table, const ServingArguments& arguments) {
    constexpr const char* kKey = "full_us_per_ktoken";
    if (!table.listed || table.owns(kKey)) return;
    throw Error(
        ErrorKind::BadInput,
        fmt::format("the rung full cannot be simulated with {}: its {} was not measured", arguments.costs, kKey),
        fmt::format("leave full out of --rungs, let load --search --rungs measure both methods, or give {} a "
                    "number and add it to the list 'fitted'",
                    kKey));
}

void refuseSparseBy(const CostTable& table, const ServingArguments& arguments) {
    if (table.method != "full") return;
    throw Error(
        ErrorKind::BadInput,
        fmt::format("a rung with a sparse method cannot be simulated with {}: its steps were measured with full "
                    "attention",
                    arguments.costs),
        "measure a sparse method: load --method nosa --costs-out FILE");
}

Workload workloadOf(const ServingArguments& arguments, std::uint64_t seed) {
    return workloadsOf(arguments, seed, 1).front();
}

std::vector<Workload> workloadsOf(const ServingArguments& arguments, std::uint64_t first, int count) {
    if (arguments.workload.empty())
        throw Error(ErrorKind::BadInput, "no workload is named", "give --workload FILE or --workload longmix");
    const Workload file = isDrawn(arguments) ? Workload() : fileOf(arguments);
    std::vector<Workload> workloads;
    for (int s = 0; s < count; ++s) {
        const std::uint64_t seed = first + std::uint64_t(s);
        workloads.push_back(changed(isDrawn(arguments) ? drawn(arguments, seed) : file, arguments, seed));
    }
    const auto same = [](const WorkloadLine& a, const WorkloadLine& b) {
        return a.arrivalUs == b.arrivalUs && a.promptTokens == b.promptTokens && a.outputTokens == b.outputTokens;
    };
    if (count > 1 && std::ranges::equal(workloads[0].lines, workloads[1].lines, same))
        throw Error(ErrorKind::BadInput,
                    fmt::format("--seeds {} would serve one workload again and again: the requests of {} are the same "
                                "with every seed",
                                count, arguments.workload),
                    "give --arrivals poisson, which draws arrivals by the seed, or leave --seeds out");
    return workloads;
}

ServingChoices servingChoices(const ServingArguments& arguments, const ServiceCosts& costs) {
    ServingChoices options;
    options.costs = costs;
    ParameterValues values = schedulerDefaults();
    bool ownTtft = false, ownTbt = false;
    for (const auto& [key, value] : parseSettings(arguments.knobOption, arguments.knobs)) {
        values.set(schedulerParameters(), key, value);
        ownTtft |= key == "ttft_bound_ms", ownTbt |= key == "tbt_bound_ms";
    }
    options.scheduler = schedulerOptions(values);
    options.window.slo = sloOf(arguments.slo, arguments, options.costs,
                               {options.scheduler.ttftBoundMs, options.scheduler.tbtBoundMs, false});
    // The scheduler works for the bounds that are promised, unless it was given others.
    if (!ownTtft) options.scheduler.ttftBoundMs = options.window.slo.ttftMs;
    if (!ownTbt) options.scheduler.tbtBoundMs = options.window.slo.tbtMs;
    options.budget.device = amountOf("--device-kv", arguments.deviceKv);
    options.budget.host = amountOf("--host-kv", arguments.hostKv);
    options.budget.scratch = amountOf("--scratch", arguments.scratch);
    options.window.counted = arguments.counted;
    options.window.warmUpRequests = arguments.warmUp, options.window.warmUpSeconds = arguments.warmUpSeconds;
    return options;
}

void addEngineOptions(Options& sub, ServingArguments& arguments, KnobOption kind) {
    if (kind == KnobOption::Knob) arguments.knobOption = "--knob";
    sub.add(arguments.knobOption, arguments.knobs,
            "A knob of the scheduler, key=value; simulate --list-knobs lists them");
    sub.add("--costs", arguments.costs, "What an iteration costs, a JSON file").valueName("FILE");
    sub.add("--device-kv", arguments.deviceKv, "Device memory for KV and index").showsDefault();
    sub.add("--host-kv", arguments.hostKv, "Host memory for KV").showsDefault();
    sub.add("--scratch", arguments.scratch, "Device memory for prompts that are being read").showsDefault();
}

Option addServingOptions(Options& sub, ServingArguments& arguments, KnobOption kind) {
    sub.add("--workload", arguments.workload, "A JSONL file, a trace of a serving run, or longmix").valueName("FILE");
    const Option rate = sub.add("--rate", arguments.rates, "Requests per second, e.g. 0.5,1,2; default: the workload's")
                            .commaSeparated()
                            .range(1e-6, 1e5);
    sub.add("--slo", arguments.slo, "ttft=MS,tbt=MS; tbt=25x is 25 decode iterations of 32 rows");
    sub.flag("--tpot", arguments.tpot, "A request keeps tbt by its mean gap, not by the 99th percentile");
    addEngineOptions(sub, arguments, kind);
    sub.add("--arrivals", arguments.arrivals, "Draw arrivals anew at the workload's rate, or take them as recorded")
        .oneOf({"recorded", "poisson", "gamma", "constant"});
    sub.add("--burst", arguments.burst, "Shape of gamma arrivals: 0.25 doubles the variation, 1 is Poisson").positive();
    sub.add("--spread", arguments.spread, "Spread arrivals of a file over buckets of so many ms").range(0.001, 1e9);
    sub.add("--scale", arguments.scale, "Divide prompts by this and outputs by half of it").positive();
    sub.add("--outputs", arguments.outputs, "Multiply outputs by this").positive();
    sub.add("--cap", arguments.cap, "Longest prompt in tokens, e.g. 32K");
    sub.add("--requests", arguments.requests, "Requests of longmix; default: 512").range(1, 10'000'000);
    sub.add("--counted", arguments.counted, "Requests of the window; default: the workload once").range(1, 10'000'000);
    sub.add("--warm-up", arguments.warmUp, "Requests before the window, at least").range(0, 10'000'000).showsDefault();
    sub.add("--warm-up-seconds", arguments.warmUpSeconds, "Seconds before the window, at least")
        .range(0.0, 86400.0)
        .showsDefault();
    sub.add("--seed", arguments.seed, "Seed of lengths and arrivals").showsDefault();
    sub.flag("--json", arguments.json, "Print one JSON document");
    return rate;
}

} // namespace kvscope::cli
