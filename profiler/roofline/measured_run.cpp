#include "profiler/roofline/measured_run.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/model/model.h"
#include "core/select/method.h"
#include "core/select/recorded_heads.h"
#include "core/trace/run_meta.h"
#include "core/trace/stage.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/next_step.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/step_kind.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {
namespace {

/// The method as the run was recorded with it. Writers that leave parameters out mean the method's defaults.
SelectionSpec methodOf(const RunRow& row, const MethodEntry& method) {
    const ModelConfig config = configOfHeads(row.queryHeads, row.kvHeads, row.headDim);
    std::vector<std::pair<std::string, std::string>> settings;
    const nlohmann::json recorded = parseJson(row.paramsJson);
    for (const Parameter& parameter : method.parameters) {
        const nlohmann::json& value = member(recorded, parameter.key.c_str());
        if (!value.is_null())
            settings.emplace_back(parameter.key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    SelectionSpec spec = specOf(method, settings, config);
    if (row.blockSize < 1 || row.blockSize > 65536)
        throw Error(ErrorKind::BadInput, fmt::format("the block size is {} tokens", row.blockSize),
                    "the trace is damaged; record it again");
    if (!spec.dense) spec.blockSize = spec.grid.blockSize = row.blockSize;
    // The number of blocks that were attended counts, whatever the parameters said.
    if (!spec.dense && row.budgetBlocks > spec.budgetBlocks())
        spec.budget.queryAware += row.budgetBlocks - spec.budgetBlocks();
    if (!spec.dense && row.budgetBlocks > 0)
        for (int* part : {&spec.budget.queryAgnostic, &spec.budget.queryAware, &spec.budget.window, &spec.budget.sink})
            *part -= std::clamp(spec.budgetBlocks() - row.budgetBlocks, 0, *part);
    return spec;
}

/// A method that this program does not have: what it attends is known, how it chooses is not.
SelectionSpec foreignMethodOf(const RunRow& row, bool selects) {
    SelectionSpec spec;
    spec.dense = !selects || row.budgetBlocks <= 0 || row.blockSize < 1;
    if (spec.dense) return spec;
    spec.blockSize = spec.grid.blockSize = row.blockSize;
    for (int* part : {&spec.budget.queryAgnostic, &spec.budget.window, &spec.budget.sink}) *part = 0;
    spec.budget.queryAware = row.budgetBlocks;
    return spec;
}

/// As meanContext, of a run whose prompts are read in pieces: of steps that only decode.
double meanContextOfDecodes(const TraceReader& reader, const RunRow& row, int firstStep) {
    Statement tokens(*ReaderAccess::of(reader).connection,
                     "SELECT id, position FROM token WHERE id BETWEEN ? AND ? AND (id >> 10) & 1023 < ?");
    const auto [low, high] = trace::keysOfSteps(row.runId, firstStep, row.steps - 1, trace::kTokenShift);
    tokens.bindAll(low, high, row.sequences);
    double sum = 0, count = 0;
    while (tokens.step())
        if (row.prompts.reads(trace::stepOf(tokens.int64(0), trace::kTokenShift)) == StepReads::Decode)
            sum += double(tokens.int64(1)), ++count;
    return count > 0 ? sum / count : 0;
}

/// Mean tokens with keys and values when a step decoded; a token at position p was decoded with p of them.
double meanContext(const TraceReader& reader, const RunRow& row, int firstStep) {
    if (row.prompts.inPieces()) return meanContextOfDecodes(reader, row, firstStep);
    Statement tokens(*ReaderAccess::of(reader).connection,
                     "SELECT avg(position) FROM token WHERE id BETWEEN ? AND ? AND (id >> 10) & 1023 < ?");
    const auto [low, high] = trace::keysOfSteps(row.runId, firstStep, row.steps - 1, trace::kTokenShift);
    tokens.bindAll(low, high, row.sequences);
    return tokens.step() && !tokens.isNull(0) ? tokens.real(0) : 0;
}

StepParts partsOf(const BreakdownStep& step, double exposedInside) {
    const auto stage = [&](Stage s) { return double(step.stageNs[std::size_t(s)]); };
    StepParts parts;
    parts.projectionsNs = stage(Stage::QkvLinear) + stage(Stage::OLinear) + stage(Stage::Ffn);
    for (const std::int64_t ns : step.stepStageNs) parts.projectionsNs += double(ns);
    parts.exposedNs = exposedInside;
    parts.selectionNs = stage(Stage::Rope) + stage(Stage::Compression) + stage(Stage::Stage1) + stage(Stage::Pooling) +
                        stage(Stage::Offloading) - exposedInside;
    parts.attentionNs = stage(Stage::Stage2) + stage(Stage::Attention);
    parts.otherNs = double(step.otherNs);
    return parts;
}

constexpr std::array kParts{&StepParts::projectionsNs, &StepParts::selectionNs, &StepParts::attentionNs,
                            &StepParts::exposedNs, &StepParts::otherNs};
constexpr std::array kPartPhrases{"the projections take", "selection takes", "attention takes",
                                  "waiting for transfers takes", "what no stage claims takes"};
static_assert(kParts.size() == kPartPhrases.size());

std::string roundedMilliseconds(double ns) { return fmt::format("{:.3g} ms", ns / 1e6); }

std::string explain(const StepParts& measured, const StepParts& predicted, double excess) {
    if (excess <= 0) return "the step is as fast as the rates of the device allow";
    const auto more = [&](std::size_t i) { return measured.*kParts[i] - predicted.*kParts[i]; };
    std::size_t worst = 0;
    for (std::size_t i = 1; i < kParts.size(); ++i)
        if (more(i) > more(worst)) worst = i;
    return fmt::format("{} {} for a floor of {}, {:.0f} % of the difference", kPartPhrases[worst],
                       roundedMilliseconds(measured.*kParts[worst]), roundedMilliseconds(predicted.*kParts[worst]),
                       100 * more(worst) / excess);
}

} // namespace

MeasuredRun measuredSteps(const TraceReader& reader, int runId) {
    const std::optional<RunRow> row = reader.run(runId);
    if (!row)
        throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId),
                    "kvscope-cli info lists its runs");
    return measuredSteps(reader, *row);
}

MeasuredRun measuredSteps(const TraceReader& reader, const RunRow& row) {
    if (!row.metaOr(run_meta::kDenoisingBlock).empty())
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("run {} of {} is of a diffusion model, and the model of costs is of steps that decode one "
                        "token of each sequence",
                        row.runId, reader.path()),
            "choose a run with decode steps");
    if (row.serves())
        throw Error(ErrorKind::Unsupported,
                    fmt::format("run {} of {} served requests, and the model of costs is of steps with one number of "
                                "sequences of about one length",
                                row.runId, reader.path()),
                    "choose a run of kvscope-cli run");
    if (!row.knows.has(Known::StepTimes))
        throw Error(ErrorKind::BadInput,
                    fmt::format("run {} of {} does not know how long its steps took", row.runId, reader.path()),
                    "record a run with the times of its steps");
    MeasuredRun run;
    run.row = row;
    // Another engine's method of the same name has neither the parameters nor the budgets of this program's.
    const std::string& engine = row.metaOr(run_meta::kEngine);
    const MethodEntry* method = engine.empty() || engine == run_meta::kOurEngine ? knownMethod(row.method) : nullptr;
    run.methodKnown = method != nullptr;
    if (method != nullptr) try {
            run.method = methodOf(row, *method);
        } catch (Error& error) {
            error.during(fmt::format("reading the method of run {} of {}", row.runId, reader.path()));
            throw;
        }
    std::vector<StepRow> steps;
    if (row.steps > 0) // a live run has more by now, and its parts are read as far as the row says
        for (StepRow& step : reader.steps(row.runId, 0, row.steps - 1))
            if (step.phase == Phase::Decode && step.durationNs > 0) steps.push_back(step);
    if (steps.empty())
        throw Error(ErrorKind::BadInput, fmt::format("run {} of {} has no decode step", row.runId, reader.path()),
                    "record a run that decodes at least two tokens");
    if (method == nullptr)
        run.method = foreignMethodOf(
            row, std::any_of(steps.begin(), steps.end(), [](const StepRow& step) { return step.selected > 0; }));
    const std::vector<StepKind> kinds = kindsOf(reader, row, steps);
    run.coldSteps = int(std::count(kinds.begin(), kinds.end(), StepKind::Cold));
    run.mixedSteps = int(std::count(kinds.begin(), kinds.end(), StepKind::Mixed));
    if (coldSteps() == ColdSteps::LeftOut && run.coldSteps + run.mixedSteps < int(steps.size())) {
        std::vector<StepRow> warm;
        for (std::size_t i = 0; i < steps.size(); ++i)
            if (!isLeftOut(kinds[i]))
                warm.push_back(steps[i]);
            else
                run.leftOut.push_back(steps[i].step);
        steps = std::move(warm);
    }
    double tokens = 0, duration = 0, hits = 0, misses = 0, exposed = 0, bytes = 0;
    for (const StepRow& step : steps) {
        tokens += double(step.decodeTokens());
        duration += double(step.durationNs);
        hits += double(step.hits);
        misses += double(step.misses);
        exposed += double(step.exposedNs);
        bytes += double(step.h2dBytes);
    }
    const auto count = double(steps.size());
    run.steps = int(steps.size());
    run.firstStep = steps.front().step;
    run.batch = tokens / count;
    run.stepNs = duration / count;
    run.tokensPerSecond = tokens / duration * 1e9;
    constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
    run.exposedNs = row.knows.has(Known::ExposedTimes) ? exposed / count : 0;
    run.linkBytes = row.knows.has(Known::Bytes) ? bytes / count : unknown;
    run.hitRate = row.knows.has(Known::Hits) && hits + misses > 0 ? hits / (hits + misses) : unknown;
    run.context = meanContext(reader, row, run.firstStep);
    return run;
}

bool addParts(MeasuredRun& run, const TraceReader& reader, int& next, int mostSteps) {
    const int end = run.row.steps; // behind the last step that the means count: a live run has more by now
    const int first = nextRecordedStep(reader, run.row.runId, std::max(next, run.firstStep));
    const int last = mostSteps < 0 ? end - 1 : std::min(end - 1, first + mostSteps - 1);
    if (first <= last)
        for (const BreakdownStep& step : reader.breakdownSteps(run.row.runId, first, last)) {
            if (std::binary_search(run.leftOut.begin(), run.leftOut.end(), step.step) ||
                run.row.prompts.readsPrompt(step.step))
                continue;
            const StepParts parts = partsOf(step, 0);
            for (const auto part : kParts) run.parts.*part += parts.*part / run.steps;
        }
    next = last + 1;
    if (next < end) return false;
    if (run.linkMeasured()) run.parts.exposedNs = run.exposedNs, run.parts.selectionNs -= run.exposedNs;
    return true;
}

MeasuredRun measuredRun(const TraceReader& reader, int runId) {
    MeasuredRun run = measuredSteps(reader, runId);
    int next = 0;
    addParts(run, reader, next);
    return run;
}

bool fitsRun(const ModelShape& shape, const RunRow& run) {
    return shape.layers == run.layers && shape.kvHeads == run.kvHeads && shape.queryHeads == run.queryHeads &&
           shape.headDim == run.headDim;
}

std::optional<ModelShape> shapeOfRun(const RunRow& run) {
    if (const std::string& recorded = run.metaOr(run_meta::kModelShape); !recorded.empty()) {
        std::optional<ModelShape> shape = parseModelShape(recorded);
        if (shape && shape->name.empty()) shape->name = run.model;
        return shape && fitsRun(*shape, run) ? shape : std::nullopt;
    }
    for (const ModelShape& shape : modelShapes()) // "nosa-8b", or "nosa-8b (random weights)"
        if ((run.model == shape.name || run.model.starts_with(shape.name + " ")) && fitsRun(shape, run)) return shape;
    for (const std::string& name : embeddedModels())
        if (run.model == name) {
            const ModelShape shape = shapeOf(*Model::load(name));
            if (fitsRun(shape, run)) return shape;
        }
    return std::nullopt;
}

const GpuSpec* gpuOfRun(const GpuTable& table, const RunRow& run) {
    if (run.backend == RunBackend::Cpu) {
        const GpuSpec* measured = table.find(kLocalCpu);
        if (measured == nullptr || measured->processor.empty()) return measured; // a person's own entry says no name
        return measured->processor == run.metaOr(run_meta::kProcessor) ? measured : nullptr;
    }
    const std::string device = run.device.substr(0, run.device.find(',')); // "NVIDIA H200, 132 multiprocessors, ..."
    const GpuSpec* found = nullptr;
    for (const GpuSpec& spec : table.all())
        if (spec.title == device && (found == nullptr || spec.name == kLocalGpu)) found = &spec;
    return found;
}

DecodeScenario scenarioOf(const MeasuredRun& run, const ModelShape& shape, const GpuSpec& gpu) {
    DecodeScenario scenario;
    scenario.model = shape;
    scenario.gpu = gpu;
    scenario.method = run.method;
    scenario.placement = run.offloaded() ? Placement::OnDemand : Placement::Resident;
    scenario.context = std::max(1, int(std::lround(run.context)));
    scenario.batch = std::max(1, int(std::lround(run.batch)));
    scenario.hitRate = std::isnan(run.hitRate) ? 1 : run.hitRate;
    scenario.deviceSlots = run.method.dense ? 0 : std::max(run.row.deviceSlots, run.method.budgetBlocks());
    if (!run.offloaded()) scenario.deviceSlots = 0;
    scenario.bytesPerElement = run.row.backend == RunBackend::Cpu ? 4 : 2; // the CPU backend keeps float32
    scenario.blockBytes = run.offloaded() ? run.row.blockBytes : 0;
    return scenario;
}

RunBesideFloor compare(const MeasuredRun& run, const ModelShape& shape, const GpuSpec& gpu) {
    RunBesideFloor comparison;
    comparison.predicted = predictStep(scenarioOf(run, shape, gpu));
    StepParts parts = comparison.predicted.parts;
    if (!run.linkMeasured()) parts.exposedNs = 0;
    comparison.predictedNs = parts.projectionsNs + parts.selectionNs + parts.attentionNs + parts.exposedNs;
    comparison.shareOfFloor = comparison.predictedNs / run.stepNs;
    comparison.aboveRoof = comparison.shareOfFloor > 1 + kRoofTolerance;
    if (comparison.aboveRoof)
        comparison.why = fmt::format(
            "the step takes {:.1f} % of the time that {} needs for the bytes and operations of {}: the entry of the "
            "table, the model's shape or the clock is wrong",
            100 / comparison.shareOfFloor, gpu.title, shape.name);
    else
        comparison.why = std::isnan(comparison.predicted.stepNs)
                             ? "the GPU of the prediction does not hold the run"
                             : explain(run.parts, parts, run.stepNs - comparison.predictedNs);
    return comparison;
}

} // namespace kvscope
