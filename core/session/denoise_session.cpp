// A run that writes block by block: every step is one denoising forward of each unfinished sequence.
#include "core/diffusion/block_run.h"
#include "core/diffusion/unmasking.h"
#include "core/model/ids_only.h"
#include "core/select/refusal.h"
#include "core/session/denoise_engine.h"
#include "core/session/sampler.h"
#include "core/session/session_run.h"
#include "core/session/stage_clock.h"
#include "core/trace/run_meta.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

[[noreturn]] void refuseUnsupported(const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::Unsupported, message, hint);
}

/// What sessions of the other kind have and these have not.
void checkChoices(const SessionOptions& options, const std::string& model) {
    if (options.backend == Backend::Cuda)
        refuseUnsupported(fmt::format("{} is a block-diffusion model, which runs on the CPU backend", model),
                          "use --backend cpu");
    if (options.deviceKvBlocks || options.deviceKvBytes)
        refuseUnsupported(
            fmt::format("--device-kv has no effect on {}: the prefix of a block-diffusion model stays on the device",
                        model),
            "leave it out");
    if (!options.cachePolicy.empty() && options.cachePolicy != "keep-selected")
        refuseUnsupported(
            fmt::format("--cache-policy has no effect on {}: the prefix of a block-diffusion model stays on the device",
                        model),
            "leave it out");
    if (options.oracle)
        refuseUnsupported(
            "the oracle measures tokens that are decoded one by one, and not the forwards of a block-diffusion model",
            "leave --oracle out");
}

struct DenoiseRun final : SessionRun {
    DenoiseRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
               SessionOptions sessionOptions, TraceSink& traceSink);

    void prefill(const Progress& progress, const std::stop_token& stop) override;
    bool step() override;
    bool finished() const override {
        return std::all_of(runs.begin(), runs.end(), [](const BlockRun& run) { return run.finished(); });
    }
    const float* logits(int) const override {
        refuseUnsupported(
            "a denoising forward has logits of every masked position, and none of a next token",
            "leave out what reads a next token's logits (run --logits, perplexity), or use another model");
    }
    void forceNextTokens(const std::vector<std::int32_t>&) override {
        refuseUnsupported(
            "a block-diffusion model chooses which position it writes next, so that no next token can be given",
            "use a model that decodes token by token");
    }

    void markAllowed();
    void beginInfo();
    void writeTokens(StepRecord& record);
    void writeRow(int row, DenoiseForward& forward, StepRecord& record);
    void addSums(const StepRecord& record);
    bool beginsBlock(const StepRecord& record) const;

    DenoiseOptions denoise;
    std::vector<std::uint8_t> allowed; // [vocab] ids that may be written
    std::unique_ptr<DenoiseEngine> engine;
    std::unique_ptr<CandidateChooser> chooser;
    std::vector<Sampler> samplers;
    std::vector<BlockRun> runs; // [sequence]
    std::vector<DenoiseRow> rows;
    std::vector<Candidate> candidates;
    double localitySum = 0, densitySum = 0;
    std::int64_t densityCount = 0;
};

DenoiseRun::DenoiseRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                       SessionOptions sessionOptions, TraceSink& traceSink)
    : SessionRun(std::move(loaded), std::move(ids), std::move(sessionOptions), traceSink) {
    const ModelConfig& config = model->config();
    checkPrompts(options.maxNewTokens);
    checkChoices(options, model->name());
    if (method.denoisingParameters.empty()) throw refusalOnDenoisers(method, model->name());
    resolveParameters();
    denoise = select::denoiseOptions(parameters);
    parameters.assign("steps", std::to_string(denoise.steps)); // 0 stood for the block's length
    spec = method.make(parameters, config);
    options.cachePolicy = "keep-selected";
    options.offload = false;
    markAllowed();

    DenoiseSetup setup{model, prompts, denoise, spec, {}, options.threads, sink.level(), options.denoiseObserver};
    for (const auto& prompt : prompts) {
        setup.maxTokens.push_back(BlockRun::reach(int(prompt.size()), options.maxNewTokens, denoise.block));
        runs.emplace_back(prompt, options.maxNewTokens, denoise.block, config.diffusion->maskId,
                          options.stopAtEos ? config.eosIds : std::vector<std::int32_t>());
        samplers.emplace_back(options.sampling, int(samplers.size()));
        summary.promptTokens += int(prompt.size());
    }
    generated.resize(prompts.size());
    engine = makeCpuDenoiser(setup);
    chooser = std::make_unique<CandidateChooser>(
        CandidateSampling{options.sampling.temperature, options.sampling.topP, options.sampling.topK}, allowed);
    beginInfo();
}

/// The mask is no token, and neither are the rows of the vocabulary that pad it: those which the tokenizer does not
/// name or, where there is no tokenizer, those behind the mask.
void DenoiseRun::markAllowed() {
    const ModelConfig& config = model->config();
    const std::int32_t maskId = config.diffusion->maskId;
    const bool idsOnly = !model->embedded() && !hasTokenizer(model->folder());
    allowed.assign(std::size_t(config.vocab), 0);
    for (std::int32_t id = 0; id < config.vocab; ++id)
        allowed[std::size_t(id)] = id != maskId && (idsOnly ? id < maskId : !model->tokenizer().written(id).empty());
    if (std::find(allowed.begin(), allowed.end(), std::uint8_t(1)) == allowed.end())
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} has no token that could be written beside the mask", model->name()),
                    "check mask_token_id in its config.json");
}

void DenoiseRun::beginInfo() {
    describe(engine->description());
    info.link = options.link.describe();
    info.linkGbps = options.link.gigabytesPerSecond;
    info.linkLatencyUs = options.link.latencyUs;
    info.blockBytes = std::int64_t(spec.blockSize) * (model->config().headDim + model->config().storedValueDim()) *
                      std::int64_t(sizeof(float));
    info.meta.emplace_back(run_meta::kDenoisingBlock, std::to_string(denoise.block));
    sink.beginRun(info);
}

void DenoiseRun::prefill(const Progress& progress, const std::stop_token& stop) {
    auto record = sink.acquire();
    record->step = stepNumber;
    record->phase = Phase::Prefill;
    record->tokens = summary.promptTokens; // those that fill no block are read with the first one
    engine->prefill(*record, progress, stop);
    summary.prefillNs = record->durationNs;
    prefilled = true;
    commit(std::move(record));
    report(progress, 1.0, "reading the prompt");
}

bool DenoiseRun::step() {
    if (!prefilled) throw Error(ErrorKind::BadInput, "a decode step was asked for before the prompt was read");
    rows.clear();
    for (std::size_t s = 0; s < runs.size(); ++s) {
        const BlockRun& run = runs[s];
        if (run.finished()) continue;
        DenoiseRow row{int(s), run.first(), run.block(), run.step(), run.clean(), run.ids(), 0};
        for (int i = 0; i < denoise.block; ++i) row.wanted |= std::uint64_t(run.masked(i)) << i;
        rows.push_back(row);
    }
    if (rows.empty()) return false;
    auto record = sink.acquire();
    record->step = stepNumber;
    record->phase = Phase::Decode;
    engine->forward(rows, *record);
    writeTokens(*record);
    record->opensBlock = beginsBlock(*record);
    addSums(*record);
    commit(std::move(record));
    return true;
}

/// Chooses and writes tokens in every row; the time is part of the step.
void DenoiseRun::writeTokens(StepRecord& record) {
    const std::int64_t begin = steadyNowNs();
    nvtxPush(kStepStageNames[std::size_t(StepStage::Sample)]);
    for (int row = 0; row < int(rows.size()); ++row) {
        const DenoiseRow& from = rows[std::size_t(row)];
        DenoiseForward forward;
        forward.sequence = from.sequence, forward.block = from.block, forward.step = from.step;
        forward.final = from.clean;
        writeRow(row, forward, record);
        record.tokens += forward.written;
        record.denoise.forwards.push_back(forward);
    }
    nvtxPop();
    const std::int64_t duration = steadyNowNs() - begin;
    record.stepStageNs[std::size_t(StepStage::Sample)] += duration;
    record.durationNs += duration;
}

void DenoiseRun::writeRow(int row, DenoiseForward& forward, StepRecord& record) {
    const auto s = std::size_t(forward.sequence);
    BlockRun& run = runs[s];
    std::vector<DenoiseToken>& tokens = record.denoise.tokens;
    forward.firstToken = std::uint32_t(tokens.size()), forward.tokens = std::uint32_t(denoise.block);
    candidates.clear();
    for (int i = 0; i < denoise.block; ++i) {
        DenoiseToken token;
        token.position = run.first() + i;
        token.id = run.ids()[std::size_t(i)];
        if (run.masked(i)) {
            Candidate candidate = chooser->choose(engine->logits(row, i), [&] { return samplers[s].draw(); });
            if (candidate.id < 0) {
                nvtxPop();
                throw Error(
                    ErrorKind::BadInput,
                    fmt::format("{}: the logits of position {} of sequence {} are not all finite numbers, so that "
                                "no token can be chosen",
                                model->name(), token.position, s),
                    "weights of the model are infinite or NaN, or too large for their type: check its files, or "
                    "download them again");
            }
            candidate.position = i;
            candidates.push_back(candidate);
            token.candidate = candidate.id;
            token.confidence = float(candidate.confidence);
        }
        tokens.push_back(token);
    }
    forward.masked = std::int32_t(candidates.size());
    const std::size_t before = run.generated().size();
    if (!candidates.empty())
        for (const std::int32_t i : chooseWritten(denoise, forward.step, candidates)) {
            DenoiseToken& token = tokens[forward.firstToken + std::size_t(i)];
            token.written = true;
            ++forward.written;
            run.write(i, token.candidate);
        }
    run.forwardDone();
    for (std::size_t i = before; i < run.generated().size(); ++i) {
        const std::int32_t id = run.generated()[i];
        record.generated.push_back({forward.sequence, id, run.promptTokens() + int(i), model->tokenizer().bytesOf(id)});
    }
    generated[s] = run.generated();
}

/// Of some sequence a block begins, or selects for the first time: nothing of its block is there to compare with.
bool DenoiseRun::beginsBlock(const StepRecord& record) const {
    return std::any_of(rows.begin(), rows.end(), [](const DenoiseRow& row) { return row.step == 0; }) ||
           std::any_of(record.selections.begin(), record.selections.end(),
                       [](const SelectionRecord& selection) { return selection.selected > 0 && selection.kept < 0; });
}

void DenoiseRun::addSums(const StepRecord& record) {
    summary.decodeNs += record.durationNs;
    summary.decodedTokens += record.tokens;
    ++summary.steps;
    bool chooses = false;
    for (const SelectionRecord& selection : record.selections) {
        chooses |= selection.selected > 0;
        summary.hits += selection.hits;
        if (selection.kept < 0 || selection.selected == 0) continue;
        const double locality = double(selection.kept) / selection.selected;
        localitySum += locality;
        ++summary.localityCount;
        summary.localityMean = localitySum / double(summary.localityCount);
        summary.localityMin = summary.localityCount == 1 ? locality : std::min(summary.localityMin, locality);
    }
    for (const DenoiseLayer& layer : record.denoise.layers) {
        if (!layer.sparse) continue;
        densitySum += double(layer.density);
        summary.densityMean = densitySum / double(++densityCount);
    }
    // As readers of a trace have it: the first step that selects, or the first one of a run that never does.
    if ((chooses && !summary.selects) || (summary.steps == 1 && !chooses)) {
        summary.cold = {1, record.tokens, record.durationNs, 0, 0};
        for (const SelectionRecord& selection : record.selections) summary.cold.hits += selection.hits;
    }
    summary.selects |= chooses;
}

} // namespace

std::unique_ptr<SessionRun> makeDenoiseRun(std::shared_ptr<const Model> model,
                                           std::vector<std::vector<std::int32_t>> prompts, SessionOptions options,
                                           TraceSink& sink) {
    return std::make_unique<DenoiseRun>(std::move(model), std::move(prompts), std::move(options), sink);
}

} // namespace kvscope
