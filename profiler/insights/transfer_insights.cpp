// Where exposed transfer time comes from.
#include "base/json_reading.h"
#include "core/select/method.h"
#include "profiler/insights/insight_rule.h"
#include "profiler/insights/words.h"

#include <fmt/format.h>

namespace kvscope {
namespace {

double impactOf(const RunFacts& facts, Exposure reason) {
    const ExposureReport& exposure = facts.exposure();
    return exposure.decodeNs() > 0 ? double(exposure.counted().time.because(reason)) / exposure.decodeNs() : 0;
}

struct Loads {
    std::int64_t transfers = 0, blocks = 0, bytes = 0, wallNs = 0;
};
Loads loadsOf(const ExposureReport& exposure) {
    Loads loads;
    for (const LayerExposure& layer : exposure.layers) {
        loads.transfers += layer.h2dTransfers;
        loads.blocks += layer.h2dBlocks;
        loads.bytes += layer.h2dBytes;
        loads.wallNs += layer.wallNs;
    }
    return loads;
}

/// The setting with which the run's method would have had the layer before choose; nothing where it had, or cannot.
std::optional<ForecastSetting> possibleForecast(const RunRow& run) {
    const MethodEntry* method = knownMethod(run.method);
    if (method == nullptr || !method->forecast) return std::nullopt;
    const ForecastSetting& forecast = *method->forecast;
    if (member(parseJson(run.paramsJson), forecast.key.c_str()) != forecast.without) return std::nullopt;
    return forecast;
}

std::string linkName(const ExposureReport& exposure) {
    if (!exposure.link) return exposure.run.link;
    return fmt::format("{:.3g} GB/s and {:.3g} us per transfer, {}", exposure.link->gigabytesPerSecond,
                       exposure.link->latencyUs, exposure.measured ? "fitted to the measured times" : "modelled");
}

/// The parts that all insights about one reason have in common.
Insight make(RunFacts& facts, Exposure reason, double impact) {
    const ExposureReport& exposure = facts.exposure();
    Insight insight;
    insight.impact = impact;
    insight.severity = severityOf(impact);
    insight.evidence = facts.evidence("transfers", "exposed");
    if (!exposure.group.ranges.empty()) insight.evidence.layer = exposure.group.ranges.front().first;
    insight.figures = {{"decode_share", impact, ""},
                       {fmt::format("exposed_{}_ms", kExposureNames[std::size_t(reason)]),
                        double(exposure.counted().time.because(reason)) / 1e6, "ms"},
                       {"exposed_ms", double(exposure.counted().time.exposedNs) / 1e6, "ms"},
                       {"link_gbps", exposure.link ? exposure.link->gigabytesPerSecond : 0, "GB/s"},
                       {"link_latency_us", exposure.link ? exposure.link->latencyUs : 0, "us"}};
    return insight;
}

/// Which layers wait, and which steps the numbers count.
std::string where(const ExposureReport& exposure) {
    std::string text;
    if (!exposure.group.ranges.empty())
        text = fmt::format(" {} of all exposed time comes from {}.", words::percent(exposure.group.share),
                           describe(exposure.group));
    if (exposure.cold.steps > 0 && !exposure.coldCounted) text += " Cold steps are left out.";
    return text;
}

} // namespace

void findLinkSaturated(RunFacts& facts, std::vector<Insight>& out) {
    const double impact = impactOf(facts, Exposure::Bandwidth);
    if (impact < kNoteImpact) return;
    const ExposureReport& exposure = facts.exposure();
    const Loads loads = loadsOf(exposure);
    Insight insight = make(facts, Exposure::Bandwidth, impact);
    const double steps = double(std::max(exposure.counted().steps, 1));
    insight.title = fmt::format("The link is saturated: {} per step over {:.3g} GB/s, and {} of decode time is loading "
                                "that no compute could hide",
                                words::bytes(double(loads.bytes) / steps),
                                exposure.link ? exposure.link->gigabytesPerSecond : 0, words::percent(impact));
    insight.detail = fmt::format("Loads take {} where the layers compute for {} ({}).{}",
                                 words::ms(exposure.counted().time.exposedNs), words::ms(loads.wallNs),
                                 linkName(exposure), where(exposure));
    insight.advice = "Move fewer bytes: more block slots, a method with more locality, or a smaller batch. Loading "
                     "ahead cannot help here; kvscope-cli replay --cache-blocks shows what a larger cache would save.";
    insight.figures.push_back({"h2d_bytes_per_step", double(loads.bytes) / steps, "B"});
    out.push_back(std::move(insight));
}

void findLatencyBound(RunFacts& facts, std::vector<Insight>& out) {
    const double impact = impactOf(facts, Exposure::Latency);
    if (impact < kNoteImpact) return;
    const ExposureReport& exposure = facts.exposure();
    const Loads loads = loadsOf(exposure);
    if (loads.transfers == 0) return;
    Insight insight = make(facts, Exposure::Latency, impact);
    const double blocks = double(loads.blocks) / double(loads.transfers);
    const double share =
        double(exposure.counted().time.because(Exposure::Latency)) / double(exposure.counted().time.exposedNs);
    insight.title = fmt::format("Transfers are latency-bound: {} of exposed time is the fixed {:.3g} us of {} loads of "
                                "{:.1f} blocks each",
                                words::percent(share), exposure.link ? exposure.link->latencyUs : 0,
                                words::count(double(loads.transfers)), blocks);
    insight.detail =
        fmt::format("{} of decode time; the bytes themselves, {} per load, need less ({}).{}", words::percent(impact),
                    words::bytes(double(loads.bytes) / double(loads.transfers)), linkName(exposure), where(exposure));
    insight.advice =
        "Make fewer and larger transfers: load several layers at once, ahead of time, use larger blocks, or "
        "skip offloading for layers that load a block or two per step.";
    insight.figures.push_back({"loads", double(loads.transfers), ""});
    insight.figures.push_back({"blocks_per_load", blocks, "blocks"});
    out.push_back(std::move(insight));
}

void findSerialTransfers(RunFacts& facts, std::vector<Insight>& out) {
    const double impact = impactOf(facts, Exposure::Serial);
    if (impact < kNoteImpact) return;
    const ExposureReport& exposure = facts.exposure();
    Insight insight = make(facts, Exposure::Serial, impact);
    insight.title = fmt::format("{} of decode time waits for loads that would fit beside one layer's compute",
                                words::percent(impact));
    insight.detail =
        fmt::format("{} of {} exposed: each load begins only when its layer has selected, and the attention "
                    "waits for it ({}).{}",
                    words::ms(exposure.counted().time.because(Exposure::Serial)),
                    words::ms(exposure.counted().time.exposedNs), linkName(exposure), where(exposure));
    const std::optional<ForecastSetting> forecast = possibleForecast(facts.run());
    insight.advice =
        "Load ahead: predict a layer's blocks one layer or one step early. kvscope-cli replay --lookahead 1 "
        "--accuracy 0.9 predicts the gain.";
    if (forecast)
        insight.advice += fmt::format(" Where the model has Forecast heads, {}={} does so; the text may differ.",
                                      forecast->key, forecast->with);
    insight.proposal = Proposal{.layersAhead = 1, .forecast = forecast};
    out.push_back(std::move(insight));
}

void findLatePrediction(RunFacts& facts, std::vector<Insight>& out) {
    const double impact = impactOf(facts, Exposure::Late);
    if (impact < kNoteImpact) return;
    const ExposureReport& exposure = facts.exposure();
    Insight insight = make(facts, Exposure::Late, impact);
    insight.title = fmt::format(
        "Loading ahead hides {} of the transfers, the rest comes late: {} of decode time",
        words::percent(double(exposure.counted().time.hiddenNs()) / double(exposure.counted().time.transferNs)),
        words::percent(impact));
    insight.detail = fmt::format("{} exposed, {} hidden ({}).{}", words::ms(exposure.counted().time.exposedNs),
                                 words::ms(exposure.counted().time.hiddenNs()), linkName(exposure), where(exposure));
    insight.advice = "Predict earlier (more layers ahead) or better; what is guessed wrong is loaded twice.";
    out.push_back(std::move(insight));
}

void findWriteBack(RunFacts& facts, std::vector<Insight>& out) {
    const double impact = impactOf(facts, Exposure::WriteBack);
    if (impact < kNoteImpact) return;
    const ExposureReport& exposure = facts.exposure();
    std::int64_t bytes = 0;
    for (const LayerExposure& layer : exposure.layers) bytes += layer.d2hBytes;
    Insight insight = make(facts, Exposure::WriteBack, impact);
    insight.title = fmt::format("{} of decode time waits for {} written back to the host", words::percent(impact),
                                words::bytes(double(bytes)));
    insight.detail = fmt::format("{} of {} exposed is write-back ({}). Traffic in both directions at once also slows "
                                 "loads down.{}",
                                 words::ms(exposure.counted().time.because(Exposure::WriteBack)),
                                 words::ms(exposure.counted().time.exposedNs), linkName(exposure), where(exposure));
    insight.advice = "Write full blocks back after the step or on a stream of their own, not beside a load, and skip "
                     "blocks that will not be used again.";
    insight.figures.push_back({"d2h_bytes", double(bytes), "B"});
    out.push_back(std::move(insight));
}

} // namespace kvscope
