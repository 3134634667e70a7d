#include "profiler/tune/prediction.h"

#include "base/error.h"
#include "core/session/engine_setup.h"
#include "profiler/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

constexpr int kShortPrompt = 64, kPilotTokens = 12; // tokens of the runs that set the scale
constexpr double kSameLength = 0.1;                 // recorded prompts this much longer or shorter still stand for ours

DecodeScenario scenarioOf(const TuneCandidate& candidate, const PredictionInput& in) {
    DecodeScenario s;
    s.model = shapeOf(in.model);
    s.gpu = in.machine.gpu;
    s.gpu.memoryGib = 1e6; // whether it fits was asked before, in the session's own bytes
    s.gpu.hostGib = 0;
    s.gpu.linkGbps = in.link.gigabytesPerSecond;
    s.gpu.latencyUs = in.link.latencyUs;
    s.method = candidate.spec;
    s.context = in.load.promptTokens + (in.load.newTokens + 1) / 2;
    s.batch = in.load.batch;
    s.bytesPerElement = in.load.backend == Backend::Cpu ? 4 : 2;
    if (!candidate.travels) return s;
    s.placement = candidate.looksAhead ? Placement::Lookahead : Placement::OnDemand;
    s.blockBytes = candidate.blockBytes;
    // What a method loads by its own rule is loaded anew in every step.
    const double change = candidate.spec.ownDeviceTier ? 1 : in.machine.change;
    s.hitRate = std::clamp(1 - change * queryShare(candidate.spec), 0.0, 1.0);
    if (const int slots = candidate.deviceSlots.value_or(0); slots >= candidate.spec.budgetBlocks())
        s.deviceSlots = slots;
    return s;
}

TunePrediction byRoofline(const TuneCandidate& candidate, const PredictionInput& in) {
    const DecodeScenario scenario = scenarioOf(candidate, in);
    const StepCost cost = predictStep(scenario);
    TunePrediction prediction;
    prediction.exposedNs = cost.parts.exposedNs;
    prediction.stepNs = cost.parts.projectionsNs * in.machine.projections +
                        (cost.parts.selectionNs + cost.parts.attentionNs) * in.machine.attention + cost.parts.exposedNs;
    prediction.bytesPerToken = cost.linkBytes / in.load.batch;
    prediction.hitRate = candidate.travels ? scenario.hitRate : 1;
    prediction.from = in.machine.scaled ? "roofline, scaled by full attention here" : "roofline";
    return prediction;
}

/// Whether the run has the candidate's method with its values, on the same model and backend, and as much to do.
bool standsFor(const RecordedRun& run, const TuneCandidate& candidate, const PredictionInput& in) {
    const RunRow& row = run.row;
    const ModelConfig& config = in.model.config();
    const bool cuda = row.backend == RunBackend::Cuda;
    if (row.method != candidate.method || row.model != in.model.name() || row.layers != config.layers ||
        row.sequences != in.load.batch || cuda != (in.load.backend == Backend::Cuda) || row.serves() ||
        row.droppedSteps > 0)
        return false;
    const auto recorded = nlohmann::json::parse(row.paramsJson, nullptr, false);
    if (!recorded.is_object()) return false;
    const nlohmann::json own = std::string(nameOf(ownKvType(in.load.backend)));
    if (recorded.contains("kv_type") && recorded["kv_type"] != own) return false; // candidates run with their own type
    for (const Parameter& parameter : findMethod(candidate.method).parameters) {
        const auto value = recorded.find(parameter.key);
        if (value == recorded.end()) return false;
        ParameterValues read;
        try {
            read.set(findMethod(candidate.method).parameters, parameter.key,
                     value->is_string() ? value->get<std::string>() : value->dump());
        } catch (const Error&) {
            return false;
        }
        if (read.text(parameter.key) != candidate.values.text(parameter.key)) return false;
    }
    const double tokens = double(run.reader->prompt(row.runId, 0).size()), wanted = in.load.promptTokens;
    return std::abs(tokens - wanted) <= kSameLength * wanted;
}

/// Nothing where the run does not hold what a replay needs.
std::optional<TunePrediction> byReplay(const RecordedRun& run, const TuneCandidate& candidate,
                                       const PredictionInput& in, const std::stop_token& stop) {
    SelectionTrace trace;
    try {
        trace = loadSelectionTrace(*run.reader, run.row.runId, {}, stop);
    } catch (const Error& error) {
        if (error.kind != ErrorKind::BadInput) throw;
        return std::nullopt;
    }
    if (trace.steps.size() < 2) return std::nullopt;
    const int slots = std::max(candidate.deviceSlots.value_or(trace.largest), trace.largest);
    const char* policy = slots > trace.largest ? "lru" : "keep-selected";
    const CacheReplay cache = replayCache(trace, findReplayPolicy(policy), slots, in.threads, {}, stop);
    const Extents<int, int> cells = trace.layerSteps();
    const bool measured = run.row.timing == Timing::Measured;
    TunePrediction prediction;
    double computeNs = 0, bytes = 0, tokens = 0;
    for (int i = 1; i < cells.length(0); ++i) { // the first step is cold
        const ReplayStep& step = trace.steps[std::size_t(i)];
        computeNs += std::max(0.0, double(step.durationNs) - (measured ? double(step.exposedNs) : 0.0));
        tokens += step.tokens;
        for (const std::int32_t blocks : cells.part(std::span(cache.loads), i)) {
            bytes += double(blocks) * double(trace.run.blockBytes);
            prediction.exposedNs += double(in.link.transferNs(blocks * trace.run.blockBytes));
        }
    }
    const double steps = cells.length(0) - 1;
    prediction.exposedNs /= steps;
    prediction.stepNs = computeNs / steps + prediction.exposedNs;
    prediction.bytesPerToken = bytes / std::max(1.0, tokens);
    const double asked = double(cache.total.hits + cache.total.misses);
    prediction.hitRate = asked > 0 ? double(cache.total.hits) / asked : 1;
    prediction.replayed = true;
    prediction.from = fmt::format("replay of run {} of {}", run.row.runId,
                                  std::filesystem::path(run.reader->path()).filename().string());
    return prediction;
}

/// The first `batch` prompts, each cut to so many tokens.
TokenIds firstPrompts(const PromptSet& set, int batch, std::size_t tokens) {
    TokenIds prompts;
    for (std::size_t i = 0; i < std::size_t(batch); ++i) {
        const auto& ids = set.prompts[i % set.prompts.size()].ids;
        prompts.emplace_back(ids.begin(), ids.begin() + std::ptrdiff_t(std::min(tokens, ids.size())));
    }
    return prompts;
}

} // namespace

void scaleByFull(TuneMachine& machine, const std::shared_ptr<const Model>& model, const PromptSet& set,
                 const MeasureOptions& options, const Progress& progress, const std::stop_token& stop) {
    SessionOptions full = options.session;
    full.method = "full";
    full.offload = false;
    full.maxNewTokens = kPilotTokens;
    const std::size_t longest = std::size_t(set.longest());
    const std::size_t few = std::min<std::size_t>(kShortPrompt, std::max<std::size_t>(1, longest / 4));
    SelectionSpec dense;
    dense.dense = true;
    const auto predicted = [&](std::size_t tokens) {
        DecodeScenario s;
        s.model = shapeOf(*model);
        s.gpu = machine.gpu;
        s.gpu.memoryGib = 1e6;
        s.method = dense;
        s.context = int(tokens) + kPilotTokens / 2;
        s.batch = options.batch;
        s.bytesPerElement = full.backend == Backend::Cpu ? 4 : 2;
        return predictStep(s).parts;
    };
    const auto measuredNs = [&](std::size_t tokens, double from, double to) {
        const Progress part = [&](double f, std::string_view what) { report(progress, from + (to - from) * f, what); };
        return decodeBatch(model, full, firstPrompts(set, options.batch, tokens), nullptr, part, stop).sums.stepNs();
    };
    double shortNs = 0, longNs = 0;
    try {
        shortNs = measuredNs(few, 0, 0.1);
        longNs = measuredNs(longest, 0.1, 1);
    } catch (const Error& error) {
        if (error.kind != ErrorKind::OutOfMemory) throw;
        return;
    }
    // Two times, two unknowns: attention grows with the tokens, and the rest does not.
    const StepParts atFew = predicted(few), atMany = predicted(longest);
    const double grown = atMany.attentionNs - atFew.attentionNs;
    const double attention = grown > 0 ? std::max(0.0, (longNs - shortNs) / grown) : 1;
    machine.attention = attention;
    machine.projections = std::max(0.0, (longNs - attention * atMany.attentionNs) / atMany.projectionsNs);
    machine.scaled = true;
}

void learnChange(TuneMachine& machine, const std::shared_ptr<const Model>& model, const TuneCandidate& candidate,
                 const PromptSet& set, const MeasureOptions& options, const Progress& progress,
                 const std::stop_token& stop) {
    SessionOptions session = sessionOf(candidate, options.session);
    session.deviceKvBlocks.reset(); // as many slots as it attends to: what is missed is what has changed
    session.maxNewTokens = kPilotTokens;
    const StepSums sums = decodeBatch(model, session, firstPrompts(set, options.batch, std::size_t(set.longest())),
                                      nullptr, progress, stop)
                              .sums;
    const double share = queryShare(candidate.spec), hitRate = sums.hitRate();
    if (!(share > 0) || std::isnan(hitRate)) return;
    machine.change = std::clamp((1 - hitRate) / share, 0.0, 1.0);
    machine.changeFrom = fmt::format("{} steps of {}", sums.steps, candidate.name());
}

std::vector<RecordedRun> recordedRuns(const std::string& trace) {
    const auto reader = std::make_shared<TraceReader>(trace);
    std::vector<RecordedRun> runs;
    for (const RunRow& row : reader->runs()) runs.push_back({reader, row});
    return runs;
}

TunePrediction predict(const TuneCandidate& candidate, const PredictionInput& input, const std::stop_token& stop) {
    for (const RecordedRun& run : input.recorded) {
        throwIfCancelled(stop);
        if (!candidate.travels || !standsFor(run, candidate, input)) continue;
        if (auto replayed = byReplay(run, candidate, input, stop)) return *replayed;
    }
    return byRoofline(candidate, input);
}

} // namespace kvscope
