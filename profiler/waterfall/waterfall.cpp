#include "profiler/waterfall/waterfall.h"

#include "base/error.h"
#include "profiler/insights/words.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>

namespace kvscope {
namespace {

/// Stages that share a floor: where a run has no time in the one, the engine did the work in one of the others.
constexpr std::array kScoring{Stage::Stage1, Stage::Pooling, Stage::Compression, Stage::Stage2, Stage::Attention};
constexpr std::array kAttending{Stage::Stage2, Stage::Attention};

using StageFloors = decltype(StepCost::stages);

/// Moves a floor to the first of these stages that took time.
template <std::size_t N>
void moveFloor(StageFloors& floors, const StepTimes& times, StageId from, const std::array<Stage, N>& to) {
    StageFloor& floor = floors[std::size_t(from.number())];
    if (floor.ns <= 0 || times.stages[std::size_t(from.number())].ns > 0) return;
    for (const Stage stage : to) {
        const auto number = std::size_t(StageId(stage).number());
        if (times.stages[number].ns <= 0) continue;
        floors[number].ns += floor.ns;
        floors[number].bound = floor.bound;
        floor.ns = 0;
        return;
    }
}

/// What the predicted transfers take, by the reasons of the measured ones. The bytes of loads have one floor, which is
/// divided between the two reasons of loads as the measured time is.
std::array<double, kExposureCount> transferFloors(const StepCost& cost, const StepTimes& times) {
    std::array<double, kExposureCount> floors{};
    const auto at = [](Exposure reason) { return std::size_t(reason); };
    const double serial = times.exposed[at(Exposure::Serial)].ns, bandwidth = times.exposed[at(Exposure::Bandwidth)].ns;
    const double share = serial + bandwidth > 0 ? serial / (serial + bandwidth) : 1;
    floors[at(Exposure::WriteBack)] = cost.linkReturnNs;
    floors[at(Exposure::Latency)] = cost.linkLatencyNs;
    floors[at(Exposure::Serial)] = share * cost.linkLoadNs;
    floors[at(Exposure::Bandwidth)] = (1 - share) * cost.linkLoadNs;
    return floors;
}

WaterfallBar barOf(LossKind kind, std::string id, std::string title, const TimeSum& sum, double steps) {
    WaterfallBar bar;
    bar.kind = kind;
    bar.id = std::move(id);
    bar.title = std::move(title);
    bar.measuredNs = sum.ns / steps;
    bar.most = sum.most;
    return bar;
}

double transfersNs(const Waterfall& waterfall, double WaterfallBar::*part) {
    double sum = 0;
    for (const WaterfallBar& bar : waterfall.bars)
        if (bar.kind == LossKind::Transfer) sum += bar.*part;
    return sum;
}

/// "0.76": shares of a rate.
std::string ratio(double value) { return fmt::format("{:.2f}", value); }

std::string rateOf(const Waterfall& waterfall, Resource bound) {
    if (bound == Resource::Compute) return "arithmetic rate";
    return waterfall.run.row.backend == RunBackend::Cpu ? "rate of the memory" : "read bandwidth";
}

/// What the shares of a headline are shares of: the time between steps is no part of a step, where there is much of it.
std::string_view wholeOf(const Waterfall& waterfall) {
    constexpr double kMuch = 0.05;
    return waterfall.idleNs >= kMuch * waterfall.measuredNs() ? "the time from step to step" : "the step";
}

/// The largest part of the step in words: "54 % of the step is ffn, at 0.76 of the read bandwidth".
std::string headlineOf(const Waterfall& waterfall) {
    const WaterfallBar* most = nullptr;
    for (const WaterfallBar& bar : waterfall.bars)
        if (bar.kind != LossKind::Transfer && (most == nullptr || bar.measuredNs > most->measuredNs)) most = &bar;
    const double transfers = transfersNs(waterfall, &WaterfallBar::measuredNs),
                 floor = transfersNs(waterfall, &WaterfallBar::floorNs), all = waterfall.measuredNs();
    if (all <= 0 || most == nullptr) return "The steps took no time";
    if (!waterfall.run.row.knows.has(Known::StageTimes))
        return "What the steps consist of is not known: the engine that recorded them did not see their stages";
    if (transfers > most->measuredNs)
        return fmt::format("{} of {} is waiting for transfers{}", words::percent(transfers / all), wholeOf(waterfall),
                           floor > 0 ? fmt::format(", at {} of the link's rate", ratio(floor / transfers)) : "");
    const std::string share = fmt::format("{} of {}", words::percent(most->measuredNs / all), wholeOf(waterfall));
    const std::string shareOfAll = words::percent(most->measuredNs / all);
    switch (most->kind) {
    case LossKind::Component:
        if (!waterfall.predictedNs) return fmt::format("{} is {}", share, most->title);
        if (most->floorNs <= 0) return fmt::format("{} is {}, for which the roof has no time", share, most->title);
        return fmt::format("{} is {}, at {} of the {}", share, most->title, ratio(most->floorNs / most->measuredNs),
                           rateOf(waterfall, most->bound));
    case LossKind::Idle:
        return fmt::format("{} of the time lies between the steps", shareOfAll);
    case LossKind::Gaps:
        return fmt::format("{} is gaps in which the GPU does nothing", share);
    case LossKind::Initialisation:
        return fmt::format("{} is one-off initialisation", share);
    case LossKind::Recorder:
        return fmt::format("{} of the time is the recorder's own work", shareOfAll);
    default:
        return fmt::format("{} is explained by no stage and no span", share);
    }
}

std::string lossesOf(const Waterfall& waterfall) {
    std::string text;
    int named = 0;
    for (const WaterfallBar& bar : waterfall.bars)
        if (bar.kind != LossKind::Unexplained && bar.lossNs() > 0 && named < 4) {
            text += fmt::format("{}{} {}", named++ > 0 ? ", " : "", bar.title, words::ms(bar.lossNs()));
        }
    return text;
}

std::string detailOf(const Waterfall& waterfall) {
    const std::string between = waterfall.idleNs >= 0.01 * waterfall.measuredNs()
                                    ? fmt::format(" and {} between steps", words::ms(waterfall.idleNs))
                                    : "";
    const WaterfallBar* unexplained = waterfall.find("unexplained");
    const double missing = unexplained != nullptr ? unexplained->lossNs() : 0;
    const std::string losses = waterfall.run.row.knows.has(Known::StageTimes) ? lossesOf(waterfall) : "";
    std::string text;
    if (waterfall.predictedNs)
        text = fmt::format("At best a step takes {} on {}; it takes {}{}. The difference of {} is {}; unexplained: {}.",
                           words::ms(*waterfall.predictedNs), waterfall.machine, words::ms(waterfall.stepNs), between,
                           words::ms(waterfall.differenceNs()),
                           losses.empty() ? "in no part that the trace knows" : "mostly " + losses,
                           missing == 0 ? std::string("nothing") : words::percent(missing / waterfall.measuredNs()));
    else
        text = fmt::format("A step takes {}{}{}. There is no roof to compare it with: {}.", words::ms(waterfall.stepNs),
                           between, losses.empty() ? "; how long its parts take is not known" : ": " + losses,
                           waterfall.noRoof);
    if (waterfall.aboveRoof)
        text +=
            " The run is faster than its roof: the entry of the GPU table, the model's shape or the clock is wrong.";
    if (waterfall.run.offloaded() && !waterfall.transfers)
        text += " Transfers are modelled or not known, so they are in neither of the two times.";
    if (!waterfall.kernels && waterfall.run.row.backend == RunBackend::Cuda)
        text += " No kernels are recorded: gaps between them are part of the stages.";
    if (const auto& prefill = waterfall.prefill; prefill && prefill->initialisation.ns > 0.1 * prefill->wallNs)
        text += fmt::format(" Before it, {} of the {} of the prefill were one-off initialisation.",
                            words::ms(prefill->initialisation.ns), words::ms(prefill->wallNs));
    return text;
}

} // namespace

const char* nameOf(LossKind kind) {
    constexpr const char* names[] = {"component",      "transfer", "gaps",       "idle",
                                     "initialisation", "recorder", "unexplained"};
    return names[int(kind)];
}

double Waterfall::tokensPerSecondWithout(const WaterfallBar& bar) const {
    const double left = measuredNs() - std::max(0.0, bar.lossNs());
    return left > 0 ? run.batch / left * 1e9 : 0;
}

const WaterfallBar* Waterfall::find(std::string_view id) const {
    const auto at = std::find_if(bars.begin(), bars.end(), [&](const WaterfallBar& bar) { return bar.id == id; });
    return at == bars.end() ? nullptr : &*at;
}

Waterfall makeWaterfall(MeasuredRun run, const StepTimes& times, const std::optional<StepCost>& predicted) {
    Waterfall waterfall;
    waterfall.run = std::move(run);
    const double steps = std::max(times.steps, 1);
    waterfall.kernels = times.kernels;
    waterfall.transfers = waterfall.run.linkMeasured() && waterfall.run.row.knows.has(Known::ExposedTimes);
    waterfall.prefill = times.prefill;
    waterfall.stepNs = times.wallNs / steps;
    std::vector<WaterfallBar>& bars = waterfall.bars;
    StageFloors floors{};
    if (predicted) floors = predicted->stages;
    moveFloor(floors, times, Stage::Stage1, kScoring);
    moveFloor(floors, times, Stage::Stage2, kAttending);
    moveFloor(floors, times, Stage::Attention, kAttending);
    for (int number = 1; number <= kStageCount + kStepStageCount; ++number) {
        const StageId stage = StageId::of(number);
        const TimeSum& sum = times.stages[std::size_t(number)];
        const StageFloor& floor = floors[std::size_t(number)];
        if (sum.ns <= 0 && floor.ns <= 0) continue;
        const std::string name(stage.name());
        WaterfallBar bar = barOf(LossKind::Component, name, name, sum, steps);
        bar.stage = stage;
        bar.floorNs = floor.ns;
        bar.bound = floor.bound;
        bars.push_back(std::move(bar));
    }
    if (waterfall.transfers) {
        std::array<double, kExposureCount> least{};
        if (predicted && waterfall.run.offloaded()) least = transferFloors(*predicted, times);
        for (std::size_t i = 0; i < times.exposed.size(); ++i) {
            if (times.exposed[i].ns <= 0 && least[i] <= 0) continue;
            WaterfallBar bar = barOf(LossKind::Transfer, fmt::format("transfer.{}", kExposureNames[i]),
                                     fmt::format("transfers: {}", kExposureTitles[i]), times.exposed[i], steps);
            bar.floorNs = least[i];
            bar.bound = Resource::Link;
            bars.push_back(std::move(bar));
        }
    }
    const std::pair<const TimeSum*, WaterfallBar> others[] = {
        {&times.gaps, barOf(LossKind::Gaps, "gaps", "launches and gaps", times.gaps, steps)},
        {&times.idle, barOf(LossKind::Idle, "idle", "between steps", times.idle, steps)},
        {&times.initialisation,
         barOf(LossKind::Initialisation, "initialisation", "one-off initialisation", times.initialisation, steps)},
        {&times.recorder, barOf(LossKind::Recorder, "recorder", "the recorder itself", times.recorder, steps)}};
    for (const auto& [sum, bar] : others)
        if (sum->ns > 0) bars.push_back(bar);
    waterfall.idleNs = times.betweenNs / steps;
    double floorsNs = 0, measured = 0;
    for (const WaterfallBar& bar : bars) floorsNs += bar.floorNs, measured += bar.measuredNs;
    if (predicted) waterfall.predictedNs = floorsNs;
    WaterfallBar rest = barOf(LossKind::Unexplained, "unexplained", "unexplained", times.stages[0], steps);
    rest.measuredNs = waterfall.measuredNs() - measured;
    if (std::abs(rest.measuredNs) < 1e-9 * waterfall.measuredNs()) rest.measuredNs = 0; // rounding of the sums
    std::stable_sort(bars.begin(), bars.end(),
                     [](const WaterfallBar& a, const WaterfallBar& b) { return a.lossNs() > b.lossNs(); });
    bars.push_back(std::move(rest));
    waterfall.aboveRoof = predicted && floorsNs > (1 + kRoofTolerance) * waterfall.measuredNs();
    return waterfall;
}

Waterfall waterfallOf(const TraceReader& reader, int runId, const GpuTable& table, const NamedRoof& named) {
    return waterfallOf(reader, measuredSteps(reader, runId).row, table, named);
}

Waterfall waterfallOf(const TraceReader& reader, const RunRow& row, const GpuTable& table, const NamedRoof& named) {
    MeasuredRun run = measuredSteps(reader, row);
    ExposureReport exposure = exposureOfSteps(reader, run.row, reader.steps(row.runId, 0, std::max(0, row.steps - 1)));
    readLayerExposure(reader, exposure);
    const StepTimes times = stepTimesOf(reader, run, exposure);
    const std::optional<ModelShape> shape = named.shape ? named.shape : shapeOfRun(run.row);
    std::optional<GpuSpec> gpu = named.gpu;
    if (const GpuSpec* own = gpu ? nullptr : gpuOfRun(table, run.row)) gpu = *own;
    std::optional<StepCost> predicted;
    std::string noRoof;
    if (!shape) {
        noRoof = run.row.model.empty()
                     ? "the trace does not say of which model it is"
                     : fmt::format("the trace does not say what the model '{}' looks like", run.row.model);
    } else if (!gpu) {
        noRoof = fmt::format("the table of GPUs has no entry for the machine '{}'", run.row.device);
    } else {
        try {
            predicted = predictStep(scenarioOf(run, *shape, *gpu));
        } catch (const Error& error) {
            noRoof = error.what();
        }
        if (predicted && predicted->batch < std::lround(run.batch)) {
            noRoof = fmt::format("the memory of {} does not hold the run", gpu->title);
            predicted.reset();
        }
    }
    Waterfall waterfall = makeWaterfall(std::move(run), times, predicted);
    if (predicted) waterfall.machine = gpu->title;
    waterfall.noRoof = std::move(noRoof);
    waterfall.headline = headlineOf(waterfall);
    waterfall.detail = detailOf(waterfall);
    return waterfall;
}

Insight insightOf(const Waterfall& waterfall) {
    Insight insight;
    insight.id = kRoofInsight;
    const double all = std::max(waterfall.measuredNs(), 1.0);
    const double lost = waterfall.predictedNs ? waterfall.differenceNs() : 0;
    insight.impact = std::clamp(lost / all, 0.0, 1.0);
    insight.title = waterfall.headline;
    insight.detail = waterfall.detail;
    insight.evidence.view = "waterfall";
    const WaterfallBar* first = nullptr;
    for (const WaterfallBar& bar : waterfall.bars)
        if (bar.kind != LossKind::Unexplained && (first == nullptr || bar.lossNs() > first->lossNs())) first = &bar;
    insight.advice = first == nullptr || !waterfall.predictedNs
                         ? "Look at the bars: each leads to the step and the layer that took most of it."
                         : fmt::format("Begin with {}: without its loss the run would make {} tokens/s instead of {}.",
                                       first->title, words::count(waterfall.tokensPerSecondWithout(*first)),
                                       words::count(waterfall.run.batch / all * 1e9));
    insight.figures.push_back({"measured_ms", waterfall.measuredNs() / 1e6, "ms"});
    if (waterfall.predictedNs) insight.figures.push_back({"predicted_ms", *waterfall.predictedNs / 1e6, "ms"});
    for (const WaterfallBar& bar : waterfall.bars)
        insight.figures.push_back({fmt::format("loss_{}_ms", bar.id), bar.lossNs() / 1e6, "ms"});
    return insight;
}

} // namespace kvscope
