#include "core/session/diffusion_run.h"

#include "core/select/refusal.h"
#include "core/session/stage_clock.h"
#include "core/session/writable_ids.h"
#include "core/trace/run_meta.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

[[noreturn]] void refuseUnsupported(const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::Unsupported, message, hint);
}

/// Refuses options that only sessions which decode token by token have.
void checkChoices(const SessionOptions& options, const MethodEntry& method, const Model& loaded) {
    const std::string model = loaded.name();
    const bool waits = !loaded.config().diffusion->canvas && denoisingReach(method).prefixOnHost;
    const bool sized = options.deviceKvBlocks || options.deviceKvBytes;
    const auto refuseVain = [&](const char* option) {
        refuseUnsupported(fmt::format("{} has no effect on {}: keys and values of a diffusion model stay on the device",
                                      option, model),
                          "leave it out");
    };
    if (sized && !waits) refuseVain("--device-kv");
    if (!sized && !options.cachePolicy.empty() && options.cachePolicy != "keep-selected") refuseVain("--cache-policy");
    if (options.oracle)
        refuseUnsupported(
            "the oracle measures tokens that are decoded one by one, and not the forwards of a diffusion model",
            "leave --oracle out");
}

/// The range of a step's stage for NVTX.
struct StageRange {
    explicit StageRange(StepStage stage) { nvtxPush(nameOf(stage)); }
    ~StageRange() { nvtxPop(); }
    StageRange(const StageRange&) = delete;
    StageRange& operator=(const StageRange&) = delete;
};

/// Whether some sequence begins a block or selects for the first time, so that there is no earlier selection of its
/// block to compare with.
bool beginsBlock(const StepRecord& record) {
    return std::any_of(record.denoise.forwards.begin(), record.denoise.forwards.end(),
                       [](const DenoiseForward& forward) { return forward.step == 0; }) ||
           std::any_of(record.selections.begin(), record.selections.end(),
                       [](const SelectionRecord& selection) { return selection.selected > 0 && selection.kept < 0; });
}

} // namespace

DiffusionRun::DiffusionRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
                           SessionOptions sessionOptions, TraceSink& traceSink)
    : SessionRun(std::move(loaded), std::move(ids), std::move(sessionOptions), traceSink) {
    const BlockDiffusion& diffusion = *model->config().diffusion;
    checkPrompts(options.maxNewTokens);
    checkChoices(options, method, *model);
    if (denoisingParametersFor(method, diffusion).empty()) throw refusalOnDenoisers(method, diffusion, model->name());
    resolveParameters();
    options.offload = options.offload && (options.deviceKvBlocks || options.deviceKvBytes);
    if (!options.offload) options.cachePolicy = "keep-selected";
    if (options.cachePolicy.empty()) options.cachePolicy = "lru"; // unions differ in size, so that slots may be spare
    allowed = writableIds(*model);
    chooser_.emplace(candidateSampling(), allowed);
    for (const auto& prompt : prompts) {
        samplers.emplace_back(options.sampling, int(samplers.size()));
        summary.promptTokens += int(prompt.size());
    }
    generated.resize(prompts.size());
    summary.localityMean = summary.localityMin = std::numeric_limits<double>::quiet_NaN();
}

void DiffusionRun::makeSpec() {
    const ModelConfig& config = model->config();
    spec = method.make(parameters, config);
    int longest = 0;
    for (const auto& prompt : prompts) longest = std::max(longest, int(prompt.size()) + options.maxNewTokens);
    refuseUnable(method, {parameters, spec, config, options.backend, options.offload, model.get()}, longest,
                 model.get());
}

void DiffusionRun::beginRun(const std::string& device, Timing linkTiming, int block) {
    describe(device);
    info.linkTiming = linkTiming;
    if (linkTiming == Timing::Modelled) {
        info.link = options.link.describe();
        info.linkGbps = options.link.gigabytesPerSecond;
        info.linkLatencyUs = options.link.latencyUs;
    } else {
        info.link = "PCIe (measured)";
    }
    info.blockBytes = std::int64_t(spec.unitTokens()) * (model->config().headDim + model->config().storedValueDim()) *
                      std::int64_t(options.backend == Backend::Cuda ? sizeof(std::uint16_t) : sizeof(float));
    if (spec.traceUnit > 0) info.meta.emplace_back(run_meta::kKvBlockTokens, std::to_string(spec.blockSize));
    info.meta.emplace_back(run_meta::kDenoisingBlock, std::to_string(block));
    if (model->config().diffusion->canvas)
        info.meta.emplace_back(run_meta::kDenoisingCanvas, std::to_string(options.maxNewTokens));
    sink.beginRun(info);
    if (gpuTrace() != nullptr) gpuTrace()->beginRun(sink);
}

std::vector<std::int32_t> DiffusionRun::endIds() const {
    return options.stopAtEos ? model->config().eosIds : std::vector<std::int32_t>();
}

CandidateSampling DiffusionRun::candidateSampling() const {
    return {options.sampling.temperature, options.sampling.topP, options.sampling.topK,
            model->config().diffusion->shifted};
}

const float* DiffusionRun::logits(int) const {
    refuseUnsupported("a denoising forward has logits of every masked position, and none of a next token",
                      "leave out what reads a next token's logits (run --logits, perplexity), or use another model");
}

void DiffusionRun::forceNextTokens(const std::vector<std::int32_t>&) {
    refuseUnsupported("a diffusion model chooses which position it writes next, so that no next token can be given",
                      "use a model that decodes token by token");
}

void DiffusionRun::endGpuTrace() noexcept {
    if (gpuTrace() == nullptr) return;
    try {
        settle();
    } catch (const Error&) { // the device has failed; the call that denoised has thrown this error before
    }
    gpuTrace()->endRun();
}

void DiffusionRun::prefill(const Progress& progress, const std::stop_token& stop) {
    auto record = sink.acquire();
    record->step = stepNumber;
    record->phase = Phase::Prefill;
    record->tokens = summary.promptTokens; // also those that readPrompts leaves to the first forward
    readPrompts(*record, progress, stop);
    summary.prefillNs = record->durationNs;
    prefilled = true;
    commit(std::move(record));
    if (gpuTrace() != nullptr) gpuTrace()->stepDone();
    report(progress, 1.0, "reading the prompt");
}

bool DiffusionRun::step() {
    if (!prefilled) throw Error(ErrorKind::BadInput, "a decode step was asked for before the prompt was read");
    const int rows = listRows();
    if (rows == 0) return false;
    auto record = sink.acquire();
    record->step = stepNumber;
    record->phase = Phase::Decode;
    forward(*record);
    writeTokens(rows, *record);
    record->opensBlock = beginsBlock(*record);
    addSums(*record);
    commit(std::move(record));
    if (gpuTrace() != nullptr) gpuTrace()->stepDone();
    return true;
}

/// Chooses and writes tokens in every row; the time is part of the step.
void DiffusionRun::writeTokens(int rows, StepRecord& record) {
    const std::int64_t begin = steadyNowNs();
    {
        const StageRange range(StepStage::Sample);
        for (int row = 0; row < rows; ++row) writeRow(row, record);
    }
    const std::int64_t duration = steadyNowNs() - begin;
    record.stepStageNs[StepStage::Sample] += duration;
    record.durationNs += duration;
}

DenoiseForward DiffusionRun::beginForward(RowId sequence, int first, std::span<const std::int32_t> ids,
                                          StepRecord& record) {
    std::vector<DenoiseToken>& tokens = record.denoise.tokens;
    DenoiseForward forward;
    forward.sequence = int(sequence);
    forward.firstToken = std::uint32_t(tokens.size()), forward.tokens = std::uint32_t(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        DenoiseToken token;
        token.position = first + int(i);
        token.id = ids[i];
        tokens.push_back(token);
    }
    return forward;
}

Candidate DiffusionRun::chooseAt(RowId sequence, int position, std::span<const float> logits) {
    return placed(chooser_->choose(logits, [&] { return samplers[index(sequence)].draw(); }), sequence, position);
}

Candidate DiffusionRun::placed(Candidate candidate, RowId sequence, int position) const {
    if (candidate.id < 0)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{}: the logits of position {} of sequence {} are not all finite numbers, so that no "
                                "token can be chosen",
                                model->name(), position, int(sequence)),
                    "weights of the model are infinite or NaN, or too large for their type: check its files, or "
                    "download them again");
    candidate.position = position;
    return candidate;
}

void DiffusionRun::noteCandidate(DenoiseForward& forward, int place, const Candidate& candidate, StepRecord& record) {
    DenoiseToken& token = record.denoise.tokens[forward.firstToken + std::size_t(place)];
    token.candidate = candidate.id;
    token.confidence = float(candidate.confidence);
    ++forward.masked;
}

std::int32_t DiffusionRun::noteWritten(DenoiseForward& forward, int place, StepRecord& record) {
    DenoiseToken& token = record.denoise.tokens[forward.firstToken + std::size_t(place)];
    token.written = true;
    ++forward.written;
    return token.candidate;
}

void DiffusionRun::endForward(const DenoiseForward& forward, const std::vector<std::int32_t>& all, StepRecord& record) {
    const auto s = std::size_t(forward.sequence);
    for (std::size_t i = generated[s].size(); i < all.size(); ++i)
        record.generated.push_back(
            {forward.sequence, all[i], int(prompts[s].size() + i), model->tokenizer().bytesOf(all[i])});
    generated[s] = all;
    record.tokens += forward.written;
    record.denoise.forwards.push_back(forward);
}

void DiffusionRun::addSums(const StepRecord& record) {
    summary.decodeNs += record.durationNs;
    summary.decodedTokens += record.tokens;
    ++summary.steps;
    bool chooses = false, newcomer = false;
    hasSelected_.resize(prompts.size());
    for (const SelectionRecord& selection : record.selections) {
        char& before = hasSelected_[selection.sequence];
        chooses |= selection.selected > 0;
        newcomer |= selection.selected > 0 && !before;
        if (selection.selected > 0) before = 1;
        summary.hits += selection.hits;
        summary.misses += selection.misses;
        if (selection.kept < 0 || selection.selected == 0) continue;
        const double locality = double(selection.kept) / selection.selected;
        localitySum_ += locality;
        ++summary.localityCount;
        summary.localityMean = localitySum_ / double(summary.localityCount);
        summary.localityMin = summary.localityCount == 1 ? locality : std::min(summary.localityMin, locality);
    }
    for (const LayerRecord& layer : record.layers) {
        summary.h2dBytes += layer.h2dBytes;
        summary.d2hBytes += layer.d2hBytes;
        summary.exposedNs += layer.exposedNs;
    }
    for (const DenoiseLayer& layer : record.denoise.layers) {
        if (!layer.sparse) continue;
        densitySum_ += double(layer.density);
        summary.densityMean = densitySum_ / double(++densityCount_);
    }
    // As readers of a trace have it: steps in which a sequence selects for the first time, or the first one of a run
    // that never selects. A block's first selection has none to compare with either, but its sequence has selected.
    if (chooses && !summary.selects) summary.cold = {};
    if (newcomer || (summary.steps == 1 && !chooses)) {
        SessionSummary::Part& cold = summary.cold;
        ++cold.steps;
        cold.tokens += record.tokens;
        cold.ns += record.durationNs;
        for (const SelectionRecord& selection : record.selections)
            cold.hits += selection.hits, cold.misses += selection.misses;
    }
    summary.selects |= chooses;
}

} // namespace kvscope
