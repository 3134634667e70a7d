// kvscope-cli insights: what a trace says about itself: exposed transfer time, and a ranked list of findings.
#include "app/cli/cold_option.h"
#include "app/cli/commands.h"
#include "app/cli/json_number.h"
#include "app/cli/run_choice.h"
#include "app/cli/waterfall_json.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/insights/insight.h"
#include "profiler/waterfall/waterfall.h"

#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InsightsArguments {
    std::string trace;
    int run = 0;
    bool json = false, noReplay = false;
};

double inMs(std::int64_t ns) { return double(ns) / 1e6; }

Json toJson(const TransferTime& time) {
    Json because;
    for (std::size_t i = 0; i < kExposureNames.size(); ++i) because[std::string(kExposureNames[i])] = time.becauseNs[i];
    return {{"transfer_ns", time.transferNs},
            {"hidden_ns", time.hiddenNs()},
            {"exposed_ns", time.exposedNs},
            {"exposed_because_ns", std::move(because)}};
}

Json toJson(const ExposureTotal& total) {
    Json out{{"steps", total.steps}, {"wall_ns", total.wallNs}};
    out.update(toJson(total.time));
    return out;
}

Json toJson(const ExposureReport& exposure) {
    Json layers = Json::array(), steps = Json::array(), groups = Json::array();
    for (const LayerExposure& layer : exposure.layers) {
        Json row{{"layer", layer.layer},
                 {"share", numberOrNull(layer.share)},
                 {"wall_ns", layer.wallNs},
                 {"selected", layer.selected},
                 {"hits", layer.hits},
                 {"misses", layer.misses},
                 {"h2d_transfers", layer.h2dTransfers},
                 {"h2d_blocks", layer.h2dBlocks},
                 {"h2d_bytes", layer.h2dBytes},
                 {"d2h_bytes", layer.d2hBytes}};
        row.update(toJson(layer.time));
        layers.push_back(std::move(row));
    }
    for (const StepExposure& step : exposure.steps) {
        Json row{{"step", step.step}, {"kind", nameOf(step.kind)}, {"wall_ns", step.durationNs}};
        row.update(toJson(step.time));
        steps.push_back(std::move(row));
    }
    for (const LayerRange& range : exposure.group.ranges)
        groups.push_back({{"first", range.first}, {"last", range.last}});
    Json out{{"timing", exposure.measured ? "measured" : "modelled"},
             {"known", exposure.known},
             {"share_of_decode_time", exposure.known ? numberOrNull(exposure.exposedShare()) : Json()},
             {"share_counts", exposure.coldCounted ? "all steps" : "warm steps"},
             {"share_is", exposure.measured ? "measured" : "predicted"},
             {"decode_ms", exposure.decodeNs() / 1e6},
             {"link", nullptr},
             {"all", toJson(exposure.all)},
             {"without_cold", toJson(exposure.warm)},
             {"cold", toJson(exposure.cold)},
             {"opens_block", toJson(exposure.opening)},
             {"layer_group", {{"layers", std::move(groups)}, {"share", exposure.group.share}}},
             {"layers", std::move(layers)},
             {"steps", std::move(steps)}};
    if (exposure.link)
        out["link"] = {{"gbps", numberOrNull(exposure.link->gigabytesPerSecond)},
                       {"latency_us", numberOrNull(exposure.link->latencyUs)},
                       {"is", exposure.measured ? "fitted" : "modelled"}};
    return out;
}

Json toJson(const std::optional<Price>& price) {
    if (!price) return nullptr;
    return {{"saved_low", price->low},
            {"saved_high", price->high},
            {"tokens_per_s_low", price->tokensPerSecondLow},
            {"tokens_per_s_high", price->tokensPerSecondHigh},
            {"text", price->text()}};
}

Json toJson(const std::optional<Proposal>& proposal) {
    if (!proposal) return nullptr;
    Json out = Json::object();
    if (proposal->deviceSlots > 0) out["device_slots"] = proposal->deviceSlots;
    if (!proposal->cachePolicy.empty()) out["cache_policy"] = proposal->cachePolicy;
    if (proposal->layersAhead > 0) out["layers_ahead"] = proposal->layersAhead;
    if (proposal->resident) out["resident"] = true;
    if (proposal->forecast) out[proposal->forecast->key] = proposal->forecast->with;
    return out;
}

Json toJson(const Insight& insight, int runId) {
    Json figures = Json::array();
    for (const Figure& figure : insight.figures)
        figures.push_back({{"name", figure.name}, {"value", numberOrNull(figure.value)}, {"unit", figure.unit}});
    Json evidence{{"view", insight.evidence.view}, {"run_id", runId}};
    if (!insight.evidence.metric.empty()) evidence["metric"] = insight.evidence.metric;
    const std::pair<const char*, int> places[] = {
        {"first_step", insight.evidence.firstStep}, {"last_step", insight.evidence.lastStep},
        {"sequence", insight.evidence.sequence},    {"layer", insight.evidence.layer},
        {"kv_head", insight.evidence.kvHead},       {"compare_run", insight.evidence.compareRun}};
    for (const auto& [name, value] : places)
        if (value >= 0) evidence[name] = value;
    return {{"id", insight.id},
            {"severity", nameOf(insight.severity)},
            {"impact", numberOrNull(insight.impact)},
            {"price", toJson(insight.price)},
            {"proposal", toJson(insight.proposal)},
            {"title", insight.title},
            {"detail", insight.detail},
            {"advice", insight.advice},
            {"evidence", std::move(evidence)},
            {"figures", std::move(figures)}};
}

std::string place(const Evidence& evidence) {
    std::string text = evidence.view;
    if (!evidence.metric.empty()) text += ", " + evidence.metric;
    if (evidence.firstStep >= 0)
        text += evidence.firstStep == evidence.lastStep
                    ? fmt::format(", step {}", evidence.firstStep)
                    : fmt::format(", steps {}-{}", evidence.firstStep, evidence.lastStep);
    if (evidence.layer >= 0) text += fmt::format(", layer {}", evidence.layer);
    if (evidence.kvHead >= 0) text += fmt::format(", KV head {}", evidence.kvHead);
    if (evidence.compareRun >= 0) text += fmt::format(", against run {}", evidence.compareRun);
    return text;
}

void print(const InsightReport& report, const std::optional<Waterfall>& waterfall) {
    const ExposureReport& exposure = report.exposure;
    printOut("run {}: {}\n\n{}\n  {}\n", exposure.run.runId, exposure.run.name, exposure.headline, exposure.detail);
    if (exposure.counted().time.transferNs > 0 && report.refusal.empty()) {
        printOut("\n{:>5} {:>10} {:>10} {:>7} ", "layer", "exposed_ms", "hidden_ms", "share");
        for (const std::string_view name : kExposureNames) printOut(" {:>10}", name);
        printOut("   (ms, {})\n", exposure.measured ? "measured" : "modelled");
        for (const LayerExposure& layer : exposure.layers) {
            printOut("{:>5} {:>10.3f} {:>10.3f} {:>6.1f}% ", layer.layer, inMs(layer.time.exposedNs),
                     inMs(layer.time.hiddenNs()), 100 * layer.share);
            for (const std::int64_t ns : layer.time.becauseNs) printOut(" {:>10.3f}", inMs(ns));
            printOut("\n");
        }
    }
    if (!report.unasked.empty())
        printOut("\nThe trace does not know its {}: {} kinds of findings were not looked for.\n",
                 exposure.run.knows.list(true), report.unasked.size());
    if (waterfall)
        printOut("\nWhy not the roof? {}\n   {}\n   See: kvscope-cli roofline --waterfall --trace TRACE\n",
                 waterfall->headline, waterfall->detail);
    if (report.insights.empty()) printOut("\nNothing stands out.\n");
    int rank = 0;
    for (const Insight& insight : report.insights)
        printOut("\n{}. [{}] {} ({})\n{}   {}\n   Try: {}\n   See: {}\n", ++rank, nameOf(insight.severity),
                 insight.title, insight.id, insight.price ? fmt::format("   Gain: {}\n", insight.price->text()) : "",
                 insight.detail, insight.advice, place(insight.evidence));
}

/// The waterfall of a run; nothing where its rows break rules, or where the model of costs does not describe its steps.
std::optional<Waterfall> waterfallFor(const TraceReader& reader, int runId, const InsightReport& report) {
    if (!report.refusal.empty()) return std::nullopt;
    try {
        return waterfallOf(reader, runId, GpuTable::load());
    } catch (const Error& error) {
        if (error.kind == ErrorKind::Cancelled) throw;
        return std::nullopt;
    }
}

int run(const InsightsArguments& arguments) {
    const TraceReader reader(arguments.trace);
    InsightOptions options;
    options.replay = !arguments.noReplay;
    const int runId = chooseRun(reader, arguments.run);
    const InsightReport report = insightsOf(reader, runId, options);
    const std::optional<Waterfall> waterfall = waterfallFor(reader, runId, report);
    if (!arguments.json) {
        print(report, waterfall);
        return 0;
    }
    Json list = Json::array();
    for (const Insight& insight : report.insights) list.push_back(toJson(insight, runId));
    const Json out{{"run_id", runId},
                   {"name", report.exposure.run.name},
                   {"headline", report.exposure.headline},
                   {"detail", report.exposure.detail},
                   {"alarms", report.alarms()},
                   {"not_asked", report.unasked},
                   {"waterfall", waterfall ? waterfallJson(*waterfall) : Json(nullptr)},
                   {"insights", std::move(list)},
                   {"refusal", report.refusal.empty() ? Json(nullptr) : Json(report.refusal)},
                   {"exposure", report.refusal.empty() ? toJson(report.exposure) : Json(nullptr)}};
    printOut("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
}

} // namespace

Command addInsights(Options& program) {
    auto arguments = std::make_shared<InsightsArguments>();
    Options sub =
        program.command("insights", "Show what a recorded run waits for: exposed transfers, and findings with advice");
    sub.add("trace", arguments->trace, "The .kvtrace file").required();
    sub.add("--run", arguments->run, "Run of the trace; default: the last").range(1, 255);
    sub.flag("--no-replay", arguments->noReplay, "Leave out findings that replay the cache (faster)");
    sub.flag("--json", arguments->json, "Print one JSON document, with every layer and step");
    addColdOption(sub);
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
