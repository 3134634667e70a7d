#include "profiler/insights/exposure.h"

#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "profiler/insights/words.h"
#include "profiler/read/own_tier.h"
#include "profiler/read/reader_impl.h"
#include "profiler/replay/selection_trace.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>

namespace kvscope {
namespace {

// A group is named when it causes this much, and half as much again as so many average layers would: below that, naming
// layers would send people to places that are like all others.
constexpr double kGroupShare = 2.0 / 3, kGroupLift = 1.5;
constexpr int kGroupRanges = 3; // more do not make a sentence
constexpr double kBarelyExposed = 0.001;

// Sums of absurd numbers in a damaged file wrap instead of being undefined.
void add(std::int64_t& sum, std::int64_t value) { sum = std::int64_t(std::uint64_t(sum) + std::uint64_t(value)); }

struct LayerTimes { // of one layer in one step
    std::int64_t h2dNs = 0, d2hNs = 0, exposedNs = 0, computeNs = 0;
};

TransferTime explained(const LayerTimes& layer, std::int64_t latencyNs) {
    TransferTime time;
    const std::int64_t load = std::max<std::int64_t>(layer.h2dNs, 0);
    time.exposedNs = std::max<std::int64_t>(layer.exposedNs, 0);
    time.transferNs = load;
    add(time.transferNs, std::max<std::int64_t>(layer.d2hNs, 0));
    std::int64_t rest = time.exposedNs;
    const auto take = [&](Exposure reason, std::int64_t atMost) {
        const std::int64_t part = std::clamp<std::int64_t>(atMost, 0, rest);
        time.becauseNs[std::size_t(reason)] += part;
        rest -= part;
    };
    if (rest > load) take(Exposure::WriteBack, rest - load);
    if (rest < load) {
        take(Exposure::Late, rest); // part of the load was hidden, so somebody had begun it early
    } else {
        take(Exposure::Latency, latencyNs);
        take(Exposure::Serial, layer.computeNs);
        take(Exposure::Bandwidth, rest);
    }
    return time;
}

void readLayers(const TraceReader& reader, int lastStep, ExposureReport& report) {
    const std::int64_t latencyNs = report.link ? std::int64_t(report.link->latencyUs * 1e3) : 0;
    std::unordered_map<int, std::size_t> stepIndex;
    for (std::size_t i = 0; i < report.steps.size(); ++i) stepIndex.emplace(report.steps[i].step, i);
    Statement rows(*ReaderAccess::of(reader).connection,
                   "SELECT id, selected, hits, misses, h2d_blocks, h2d_bytes, d2h_bytes, h2d_ns, d2h_ns, exposed_ns,"
                   " qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns + stage2_ns + attention_ns"
                   " + o_linear_ns + ffn_ns, offloading_ns, compression_ns + stage1_ns + pooling_ns"
                   " FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id");
    const auto [low, high] = trace::keysOfSteps(report.run.runId, 0, lastStep, trace::kLayerShift);
    rows.bindAll(low, high);
    while (rows.step()) {
        const auto at = stepIndex.find(trace::stepOf(rows.int64(0), trace::kLayerShift));
        if (at == stepIndex.end()) continue; // the prefill
        const LayerTimes times{rows.int64(7), rows.int64(8), rows.int64(9), rows.int64(10)};
        const TransferTime time = explained(times, latencyNs);
        StepExposure& step = report.steps[at->second];
        step.time += time;
        add(step.selectingNs, rows.int64(12));
        if (!report.counts(step.kind)) continue;
        const auto number = std::size_t(rows.int64(0) & (trace::kMaxLayers - 1));
        while (report.layers.size() <= number) {
            LayerExposure next;
            next.layer = int(report.layers.size());
            report.layers.push_back(next);
        }
        LayerExposure& layer = report.layers[number];
        add(layer.wallNs, times.computeNs);
        add(layer.wallNs, rows.int64(11));
        add(layer.selected, rows.int64(1));
        add(layer.hits, rows.int64(2));
        add(layer.misses, rows.int64(3));
        add(layer.h2dBlocks, rows.int64(4));
        add(layer.h2dBytes, rows.int64(5));
        add(layer.d2hBytes, rows.int64(6));
        layer.h2dTransfers += rows.int64(5) > 0;
        layer.time += time;
    }
}

std::string mainReason(const TransferTime& time) {
    const auto most = std::max_element(time.becauseNs.begin(), time.becauseNs.end());
    return fmt::format("Main reason: {} ({})", kExposureTitles[std::size_t(most - time.becauseNs.begin())],
                       words::percent(double(*most) / double(time.exposedNs)));
}

/// "1 cold step", "3 steps that are cold or read prompts as well"
std::string leftOut(const ExposureReport& report) {
    return report.mixedSteps == 0   ? words::many(report.cold.steps, "cold step")
           : report.cold.steps == 1 ? "1 step that is cold or reads prompts as well"
                                    : fmt::format("{} steps that are cold or read prompts as well", report.cold.steps);
}

void describe(ExposureReport& report) {
    const ExposureTotal& counted = report.counted();
    const char* timing = report.measured ? "measured" : "modelled";
    if (report.all.steps == 0) {
        const bool serving = report.run.serves();
        report.headline = serving ? "A serving run: its requests and iterations are recorded, not its steps"
                                  : "No decode steps are recorded yet";
        report.detail = serving ? "The view Serving and export --what requests show them."
                                : "Exposed transfer is reported for decode steps.";
        return;
    }
    if (!report.known) {
        report.headline = "What is exposed of the transfers is not known: the recording engine did not see it";
        report.detail = fmt::format("{} decode steps are recorded{}; docs/trace-format.md says how a trace tells what "
                                    "its writer knows.",
                                    report.all.steps,
                                    report.run.knows.has(Known::StepTimes)
                                        ? fmt::format(" and took {} of wall time", words::ms(double(report.all.wallNs)))
                                        : "");
        return;
    }
    if (report.all.time.transferNs == 0) {
        report.headline = "No transfers: nothing was loaded over the link in the decode steps";
        const char* const why = !report.run.metaOr(run_meta::kDenoisingBlock).empty()
                                    ? "Keys and values of a diffusion model stay on the device."
                                : hasOwnTier(report.run) ? "The method keeps what is on the device by its own rule."
                                : report.run.deviceSlots == 0 && report.run.knows.has(Known::Hits)
                                    ? "Every block is resident."
                                    : "";
        report.detail = fmt::format("{} took {} of wall time. {}", words::many(report.all.steps, "decode step"),
                                    words::ms(report.all.wallNs), why);
        return;
    }
    if (counted.steps == 0) {
        report.headline = fmt::format("Only cold decode steps are recorded: {} of transfer exposed ({})",
                                      words::ms(report.all.time.exposedNs), timing);
        report.detail = "The first decode step fills an empty device tier; record more steps to see the method.";
        return;
    }
    const double share = report.exposedShare();
    const std::string of = report.measured ? "of decode time is exposed transfer (measured)"
                                           : "of decode time would be exposed transfer (modelled link)";
    if (counted.time.transferNs == 0)
        report.headline = fmt::format("Nothing crosses the link but in {}",
                                      report.cold.steps == 1 ? "the cold step" : "the cold steps");
    else if (counted.time.exposedNs == 0)
        report.headline = fmt::format("No transfer is exposed: all of it is hidden ({})", timing);
    else if (share < kBarelyExposed)
        report.headline = fmt::format("Less than 0.1 % {}", of);
    else if (!report.group.ranges.empty())
        report.headline =
            fmt::format("{} {}; {} {} {} of it", words::percent(share), of, describe(report.group),
                        report.group.layers == 1 ? "causes" : "cause", words::percent(report.group.share));
    else if (std::count_if(report.layers.begin(), report.layers.end(),
                           [](const LayerExposure& layer) { return layer.time.exposedNs > 0; }) > 1)
        report.headline = fmt::format("{} {}, spread over the layers", words::percent(share), of);
    else
        report.headline = fmt::format("{} {}", words::percent(share), of);

    report.detail =
        fmt::format("{} exposed, {} hidden ({}) over {} decode steps of {} wall time{}.",
                    words::ms(counted.time.exposedNs), words::ms(counted.time.hiddenNs()), timing, counted.steps,
                    words::ms(counted.wallNs), report.measured ? "" : " (measured, without the link)");
    if (counted.time.exposedNs > 0 && report.byLayer) report.detail += fmt::format(" {}.", mainReason(counted.time));
    if (report.cold.steps > 0 && report.coldCounted)
        report.detail += fmt::format(" {} of it in {}, which {} counted here.", words::ms(report.cold.time.exposedNs),
                                     leftOut(report), report.cold.steps == 1 ? "is" : "are");
    else if (report.cold.steps > 0)
        report.detail +=
            fmt::format(" {} left out, with {} exposed: {} in all {} decode steps.", leftOut(report),
                        words::ms(report.cold.time.exposedNs), words::ms(report.all.time.exposedNs), report.all.steps);
}

/// The totals of the steps.
void addUp(ExposureReport& report) {
    report.all = report.cold = report.opening = report.warm = {};
    report.mixedSteps = 0;
    for (const StepExposure& step : report.steps) {
        report.all += step;
        (isLeftOut(step.kind) ? report.cold : report.warm) += step;
        report.mixedSteps += step.kind == StepKind::Mixed;
        if (step.kind == StepKind::Opening) report.opening += step;
    }
}

} // namespace

TransferTime& TransferTime::operator+=(const TransferTime& other) {
    add(transferNs, other.transferNs);
    add(exposedNs, other.exposedNs);
    for (std::size_t i = 0; i < becauseNs.size(); ++i) add(becauseNs[i], other.becauseNs[i]);
    return *this;
}

ExposureTotal& ExposureTotal::operator+=(const StepExposure& step) {
    ++steps;
    add(wallNs, step.durationNs);
    time += step.time;
    return *this;
}

double ExposureReport::decodeNs() const {
    return double(counted().wallNs) + (measured ? 0.0 : double(counted().time.exposedNs));
}

double ExposureReport::exposedShare() const {
    const double decode = decodeNs();
    return decode > 0 ? double(counted().time.exposedNs) / decode : 0;
}

LayerGroup groupOf(const std::vector<LayerExposure>& layers) {
    std::vector<std::size_t> order; // layers that wait for anything, the longest first
    double total = 0;
    for (std::size_t i = 0; i < layers.size(); ++i)
        if (layers[i].time.exposedNs > 0) order.push_back(i), total += double(layers[i].time.exposedNs);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return layers[a].time.exposedNs > layers[b].time.exposedNs; });
    const auto grouped = [&](std::vector<std::size_t> members) {
        std::sort(members.begin(), members.end());
        LayerGroup group;
        for (const std::size_t i : members) {
            const int layer = layers[i].layer;
            if (!group.ranges.empty() && group.ranges.back().last + 1 == layer)
                group.ranges.back().last = layer;
            else
                group.ranges.push_back({layer, layer});
            group.share += double(layers[i].time.exposedNs) / total;
            ++group.layers;
        }
        return group;
    };
    const auto worthNaming = [&](const LayerGroup& group) {
        return int(group.ranges.size()) <= kGroupRanges &&
               group.share >= kGroupLift * double(group.layers) / double(order.size());
    };
    if (order.size() < 2) return {}; // a group is named where others wait less, and one layer has no others
    // The fewest layers: the longest waiting ones.
    double sum = 0;
    std::size_t count = 0;
    while (sum < kGroupShare * total) sum += double(layers[order[count++]].time.exposedNs);
    const LayerGroup fewest = grouped({order.begin(), order.begin() + std::ptrdiff_t(count)});
    // The shortest stretch of neighbours, quiet layers inside included.
    LayerGroup stretch;
    for (std::size_t first = 0; first < layers.size(); ++first) {
        std::vector<std::size_t> members;
        double waiting = 0;
        for (std::size_t last = first; last < layers.size() && waiting < kGroupShare * total; ++last) {
            members.push_back(last);
            waiting += double(layers[last].time.exposedNs);
        }
        if (waiting < kGroupShare * total) break;
        const LayerGroup group = grouped(members);
        if (stretch.ranges.empty() || group.layers < stretch.layers ||
            (group.layers == stretch.layers && group.share > stretch.share))
            stretch = group;
    }
    // Neighbours are easier to act on than scattered layers, if they are hardly more.
    const bool compact = stretch.layers <= fewest.layers + fewest.layers / 4;
    const LayerGroup& first = compact ? stretch : fewest;
    if (worthNaming(first)) return first;
    const LayerGroup& second = compact ? fewest : stretch;
    return worthNaming(second) ? second : LayerGroup{};
}

std::string describe(const LayerGroup& group) {
    std::vector<std::string> parts;
    for (const LayerRange& range : group.ranges)
        parts.push_back(range.first == range.last ? fmt::format("{}", range.first)
                                                  : fmt::format("{}-{}", range.first, range.last));
    if (parts.empty()) return "no few layers";
    std::string text = group.layers == 1 ? "layer " : "layers ";
    for (std::size_t i = 0; i < parts.size(); ++i)
        text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
    return text;
}

ExposureReport exposureOfSteps(const TraceReader& reader, RunRow run, const std::vector<StepRow>& steps) {
    ExposureReport report;
    report.run = std::move(run);
    report.measured = report.run.timing == Timing::Measured;
    report.known = report.run.knows.has(Known::TransferTimes) && report.run.knows.has(Known::ExposedTimes);
    report.coldCounted = coldSteps() == ColdSteps::Counted;
    std::vector<StepRow> rows = steps;
    std::erase_if(rows, [](const StepRow& row) { return row.phase == Phase::Prefill; });
    const std::vector<StepKind> kinds = kindsOf(reader, report.run, rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        StepExposure& step = report.steps.emplace_back();
        step.step = rows[i].step, step.kind = kinds[i], step.durationNs = rows[i].durationNs;
        if (!report.known) continue;
        step.time.transferNs = std::max<std::int64_t>(rows[i].transferNs, 0);
        step.time.exposedNs = std::max<std::int64_t>(rows[i].exposedNs, 0);
    }
    addUp(report);
    describe(report);
    return report;
}

void readLayerExposure(const TraceReader& reader, ExposureReport& report) {
    if (!report.known) return;                                                // no transfer to explain
    const int lastStep = report.steps.empty() ? 0 : report.steps.back().step; // a live run may have grown since
    report.link = recordedLink(reader, report.run, lastStep);
    report.layers.clear();
    for (int layer = 0; layer < std::clamp(report.run.layers, 0, trace::kMaxLayers); ++layer)
        report.layers.emplace_back().layer = layer;
    for (StepExposure& step : report.steps) step.time = {}; // from here on the sums of its layers
    readLayers(reader, lastStep, report);
    report.byLayer = true;
    addUp(report);
    for (LayerExposure& layer : report.layers)
        if (report.counted().time.exposedNs > 0)
            layer.share = double(layer.time.exposedNs) / double(report.counted().time.exposedNs);
    report.group = groupOf(report.layers);
    describe(report);
}

ExposureReport exposureOf(const TraceReader& reader, int runId) {
    ExposureReport report = exposureOfSteps(reader, ReaderAccess::of(reader).known(runId), reader.steps(runId));
    readLayerExposure(reader, report);
    return report;
}

} // namespace kvscope
