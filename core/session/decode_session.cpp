#include "core/session/decode_session.h"

#include "base/clock.h"
#include "core/model/mapped_watch.h"
#include "core/plan/kv_format.h"
#include "core/session/end_rule.h"
#include "core/session/engine.h"
#include "core/session/engine_setup.h"
#include "core/session/processor.h"
#include "core/session/sampler.h"
#include "core/session/session_run.h"
#include "core/trace/run_meta.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {

SessionSummary::Part SessionSummary::counted() const {
    if (cold.steps >= steps) return {steps, decodedTokens, decodeNs, hits, misses};
    return {steps - cold.steps, decodedTokens - cold.tokens, decodeNs - cold.ns, hits - cold.hits,
            misses - cold.misses};
}

double SessionSummary::tokensPerSecond() const {
    const Part part = counted();
    return part.ns > 0 ? double(part.tokens) * 1e9 / double(part.ns) : 0.0;
}

double SessionSummary::hitRate() const {
    const Part part = counted();
    const auto all = double(part.hits + part.misses);
    return all > 0 ? double(part.hits) / all : std::numeric_limits<double>::quiet_NaN();
}

namespace {

struct TokenRun final : SessionRun {
    TokenRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
             SessionOptions sessionOptions, TraceSink& traceSink);

    void prefill(const Progress& progress, const std::stop_token& stop) override;
    bool step() override;
    bool finished() const override;
    const float* logits(int sequence) const override;
    void forceNextTokens(const std::vector<std::int32_t>& ids) override { nextToken = ids; }
    void sampleTokens(StepRecord& record);
    std::int32_t sampledToken(RowId sequence, int row);
    [[noreturn]] void refuseLogits(const ActiveSequence& sequence) const;
    void addTransfers(const StepRecord& record);
    void addCold(const StepRecord& record);
    void handOver(std::unique_ptr<StepRecord> record);
    void endGpuTrace() noexcept override;
    /// The recorder of kernels; null: no kernels are recorded.
    GpuTrace* gpuTrace() const { return options.backend == Backend::Cuda ? options.gpuTrace : nullptr; }
    bool done(RowId sequence) const {
        const auto& ids = generated[index(sequence)];
        return !ids.empty() && EndRule(options, model->config()).ends(int(ids.size()), ids.back());
    }

    std::unique_ptr<DecodeEngine> engine;
    std::vector<Sampler> samplers;
    std::vector<std::int32_t> nextToken; // [sequence]
    std::vector<ActiveSequence> active;
    double localitySum = 0;
    std::vector<std::int32_t> inputIds;
};

TokenRun::TokenRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                   SessionOptions sessionOptions, TraceSink& traceSink)
    : SessionRun(std::move(loaded), std::move(ids), std::move(sessionOptions), traceSink) {
    checkPrompts(options.maxNewTokens - 1); // the last token is not fed back
    checkGiven(options.given, prompts.size(), model->config().vocab, options.maxNewTokens);
    resolveParameters();
    spec = methodSpec(method, parameters, *model);
    const EngineSetup setup = engineSetup(model, prompts, options, method, parameters, spec, sink.level());
    engine = options.backend == Backend::Cuda ? makeCudaEngine(setup) : makeCpuEngine(setup);
    const int sequences = int(prompts.size());
    nextToken.resize(prompts.size());
    for (int s = 0; s < sequences; ++s) {
        generated.emplace_back().reserve(Elements(options.maxNewTokens));
        samplers.emplace_back(options.sampling, s);
    }
    for (const auto& prompt : prompts) summary.promptTokens += int(prompt.size());
    summary.localityMean = summary.localityMin = std::numeric_limits<double>::quiet_NaN();

    describe(engine->description());
    info.linkTiming = engine->linkTiming();
    if (info.linkTiming == Timing::Modelled) {
        info.link = options.link.describe();
        info.linkGbps = options.link.gigabytesPerSecond;
        info.linkLatencyUs = options.link.latencyUs;
    } else {
        info.link = "PCIe (measured)";
    }
    info.deviceSlots = setup.slots;
    info.blockBytes = kvFormat(options.backend, model->config(), spec, options.kvType).blockBytes() *
                      spec.unitTokens() / spec.blockSize;
    if (spec.unitTokens() != spec.blockSize)
        info.meta.emplace_back(run_meta::kKvBlockTokens, std::to_string(spec.blockSize));
    sink.beginRun(info);
    if (gpuTrace() != nullptr) gpuTrace()->beginRun(sink);
}

void TokenRun::prefill(const Progress& progress, const std::stop_token& stop) {
    auto record = sink.acquire();
    record->step = stepNumber;
    record->phase = Phase::Prefill;
    record->tokens = summary.promptTokens;
    engine->prefill(*record, progress, stop);
    active.clear();
    for (const RowId sequence : idsUpTo<RowId>(int(prompts.size())))
        active.push_back({sequence, int(prompts[index(sequence)].size()) - 1});
    sampleTokens(*record);
    summary.prefillNs = record->durationNs;
    prefilled = true;
    handOver(std::move(record));
    report(progress, 1.0, "reading the prompt");
}

/// Chooses the next token of every active sequence; its time is part of the step.
void TokenRun::sampleTokens(StepRecord& record) {
    const std::int64_t begin = steadyNowNs();
    nvtxPush(nameOf(StepStage::Sample));
    for (std::size_t row = 0; row < active.size(); ++row) {
        const auto s = index(active[row].sequence);
        const bool here = options.sampling.temperature > 0 && !engine->samples();
        std::int32_t id = here ? sampledToken(active[row].sequence, int(row)) : engine->chosenToken(int(row));
        if (id < 0) refuseLogits(active[row]);
        if (s < options.given.size() && generated[s].size() < options.given[s].size()) {
            const std::int32_t given = options.given[s][generated[s].size()];
            if (given != id && summary.givenUnlike < 0) summary.givenUnlike = record.step;
            id = given;
        }
        generated[s].push_back(id);
        nextToken[s] = id;
        record.generated.push_back(
            {int(active[row].sequence), id, active[row].position + 1, model->tokenizer().bytesOf(id)});
    }
    nvtxPop();
    const std::int64_t duration = steadyNowNs() - begin;
    record.stepStageNs[StepStage::Sample] += duration;
    record.durationNs += duration;
}

/// Below 0: some of the row's logits are infinite or NaN.
std::int32_t TokenRun::sampledToken(RowId sequence, int row) {
    const std::span<const float> logits{engine->logits(row), std::size_t(model->config().vocab)};
    return allFinite(logits) ? samplers[index(sequence)].sample(logits) : -1;
}

void TokenRun::refuseLogits(const ActiveSequence& sequence) const {
    nvtxPop();
    throw Error(ErrorKind::BadInput,
                fmt::format("{}: the logits after token {} of sequence {} are not all finite numbers, so that no next "
                            "token can be chosen",
                            model->name(), sequence.position, int(sequence.sequence)),
                "weights of the model are infinite or NaN, or too large for their type: check its files, or download "
                "them again");
}

bool TokenRun::step() {
    if (!prefilled) throw Error(ErrorKind::BadInput, "a decode step was asked for before the prompt was read");
    active.clear();
    inputIds.clear();
    auto record = sink.acquire();
    for (const RowId sequence : idsUpTo<RowId>(int(prompts.size()))) {
        if (done(sequence)) continue;
        const std::size_t s = index(sequence);
        active.push_back({sequence, int(prompts[s].size() + generated[s].size()) - 1});
        inputIds.push_back(nextToken[s]);
        record->opensBlock |= active.back().position % spec.blockSize == 0;
    }
    if (active.empty()) return false;
    record->step = stepNumber;
    record->tokens = int(active.size());
    engine->decode(active, inputIds, *record);
    sampleTokens(*record);
    summary.decodeNs += record->durationNs;
    summary.decodedTokens += int(active.size());
    ++summary.steps;
    addCold(*record);
    handOver(std::move(record));
    return true;
}

void TokenRun::handOver(std::unique_ptr<StepRecord> record) {
    addTransfers(*record);
    commit(std::move(record));
    if (gpuTrace() != nullptr) gpuTrace()->stepDone();
}

void TokenRun::endGpuTrace() noexcept {
    if (gpuTrace() == nullptr) return;
    try {
        engine->settle();
    } catch (const Error&) { // the device has failed; the call that decoded has thrown this error before
    }
    gpuTrace()->endRun();
}

void TokenRun::addTransfers(const StepRecord& record) {
    for (const LayerRecord& layer : record.layers) {
        summary.hits += layer.hits;
        summary.misses += layer.misses;
        summary.h2dBytes += layer.h2dBytes;
        summary.d2hBytes += layer.d2hBytes;
        summary.exposedNs += layer.exposedNs;
    }
    for (const SelectionRecord& selection : record.selections) {
        if (selection.kept < 0) continue;
        const auto row = std::find_if(active.begin(), active.end(),
                                      [&](const ActiveSequence& a) { return a.sequence == RowId{selection.sequence}; });
        if (row->position % spec.blockSize == 0)
            continue; // a new block begins, and moves the local window with any method
        const double locality = double(selection.kept) / selection.selected;
        localitySum += locality;
        ++summary.localityCount;
        summary.localityMean = localitySum / double(summary.localityCount);
        summary.localityMin = summary.localityCount == 1 ? locality : std::min(summary.localityMin, locality);
    }
}

/// Adds the step to SessionSummary::cold if it is cold.
void TokenRun::addCold(const StepRecord& record) {
    bool chooses = false, newcomer = false;
    for (const SelectionRecord& selection : record.selections) {
        chooses |= selection.selected > 0;
        newcomer |= selection.selected > 0 && selection.kept < 0;
    }
    if (chooses && !summary.selects) summary.cold = {}; // cold had the first decode step while no step had selected
    if (newcomer || (summary.steps == 1 && !chooses)) {
        SessionSummary::Part& cold = summary.cold;
        ++cold.steps;
        cold.tokens += record.tokens;
        cold.ns += record.durationNs;
        for (const LayerRecord& layer : record.layers) cold.hits += layer.hits, cold.misses += layer.misses;
    }
    summary.selects |= chooses;
}

bool TokenRun::finished() const {
    for (const RowId sequence : idsUpTo<RowId>(int(prompts.size())))
        if (!done(sequence)) return false;
    return true;
}

const float* TokenRun::logits(int sequence) const {
    for (std::size_t row = 0; row < active.size(); ++row)
        if (active[row].sequence == RowId{sequence}) return engine->logits(int(row));
    return nullptr;
}

/// What `computes` throws, unless weights were cut off meanwhile: then it has failed for them, whatever it says.
template <typename Computes> auto namingCutWeights(const SessionRun& run, const Computes& computes) {
    try {
        return computes();
    } catch (const Error&) {
        if (run.options.backend == Backend::Cpu) refuseCutWeights(*run.model);
        throw;
    }
}

} // namespace

DecodeSession::DecodeSession(std::shared_ptr<const Model> model, std::vector<std::vector<std::int32_t>> prompts,
                             SessionOptions options, TraceSink& sink) {
    const auto& diffusion = model->config().diffusion;
    if (diffusion && (!options.given.empty() || options.leftOut))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{} denoises its text instead of writing it token by token, so that no text can go on "
                                "from one of its steps",
                                model->name()),
                    "use a model that decodes token by token");
    if (diffusion && options.kvType && *options.kvType != ownKvType(options.backend))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{} denoises its text, and its KV blocks are kept as {} alone", model->name(),
                                nameOf(ownKvType(options.backend))),
                    "leave --kv-type out, or use a model that decodes token by token");
    if (diffusion && diffusion->canvas)
        run_ = makeCanvasRun(std::move(model), std::move(prompts), std::move(options), sink);
    else if (diffusion)
        run_ = makeDenoiseRun(std::move(model), std::move(prompts), std::move(options), sink);
    else
        run_ = std::make_unique<TokenRun>(std::move(model), std::move(prompts), std::move(options), sink);
    if (run_->options.backend == Backend::Cuda) refuseWrittenWeights(*run_->model); // the engine has copied them by now
}

DecodeSession::~DecodeSession() { run_->end(RunStatus::Stopped, {}); }

void DecodeSession::prefill(const Progress& progress, std::stop_token stop) {
    namingCutWeights(*run_, [&] { run_->prefill(progress, stop); });
}

bool DecodeSession::step() {
    return namingCutWeights(*run_, [&] { return run_->step(); });
}

bool DecodeSession::finished() const { return run_->finished(); }

/// Nothing that was computed with weights that changed meanwhile is called finished. A GPU has its own copy of them,
/// made when the session began.
void DecodeSession::end(RunStatus status, const std::string& message) {
    if (!run_->ended && status == RunStatus::Finished && run_->options.backend == Backend::Cpu) {
        try {
            refuseWrittenWeights(*run_->model);
        } catch (const Error& error) {
            run_->end(RunStatus::Failed, oneLine(error));
            throw;
        }
    }
    run_->end(status, message);
}

const std::vector<std::vector<std::int32_t>>& DecodeSession::generated() const { return run_->generated; }
const SessionSummary& DecodeSession::summary() const { return run_->summary; }
const SelectionSpec& DecodeSession::spec() const { return run_->spec; }
const ParameterValues& DecodeSession::parameters() const { return run_->parameters; }
const RunInfo& DecodeSession::runInfo() const { return run_->info; }
const float* DecodeSession::logits(int sequence) const { return run_->logits(sequence); }
void DecodeSession::forceNextTokens(const std::vector<std::int32_t>& ids) { run_->forceNextTokens(ids); }

} // namespace kvscope
