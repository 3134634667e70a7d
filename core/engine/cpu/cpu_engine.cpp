#include "core/engine/cpu/cpu_engine.h"

#include "base/clock.h"
#include "core/cache/cache_policy.h"
#include "core/engine/cpu/cpu_memory.h"
#include "core/engine/cpu/prompt_lengths.h"
#include "core/session/sampler.h"

#include <algorithm>

namespace kvscope {
namespace {

/// Tokens that go through a layer together: a step's rows, or a piece of a prompt.
std::size_t mostRows(const std::vector<std::vector<std::int32_t>>& prompts) {
    std::size_t rows = prompts.size();
    for (const auto& prompt : prompts) rows = std::max(rows, std::min(prompt.size(), std::size_t(kPromptPieceTokens)));
    return rows;
}

KvCacheOptions cacheOptionsOf(const EngineSetup& setup) {
    const ModelConfig& config = setup.model->config();
    KvCacheOptions options;
    options.shape = {config.layers, config.kvHeads, config.headDim, config.valueDim()};
    options.layout = {setup.spec.blockSize, config.headDim, setup.spec.bias.scale != 0.f, config.storedValueDim()};
    options.maxTokens = setup.maxTokens;
    options.plans = setup.plans;
    options.slots = setup.slots;
    return options;
}

std::optional<CpuAttention::Oracle> oracleOf(const SessionOptions& options) {
    if (!options.oracle) return std::nullopt;
    return CpuAttention::Oracle{options.oracleObserver};
}

} // namespace

CpuEngine::CpuEngine(const EngineSetup& setup)
    : model_(setup.model), spec_(setup.spec), rules_{model_->config().queryHeads, model_->config().attentionScale(),
                                                     model_->config().windows},
      kernels_(makeCpuKernels(setup.options.threads)),
      rope_(model_->config().rope, lengthsOf(setup.prompts), setup.maxTokens),
      cache_(cacheOptionsOf(setup), spec_, findCachePolicy(setup.cachePolicy)),
      context_{*kernels_,
               cache_,
               *model_,
               spec_,
               cache_.plans(),
               setup.abilities,
               rules_,
               cacheOptionsOf(setup).shape,
               rope_,
               setup.maxTokens,
               setup.options.offload,
               findCachePolicy(setup.cachePolicy).byWorth},
      clock_(steadyNowNs()), selector_(setup.makeSelector(context_)),
      x_(setup.prompts.size() * std::size_t(model_->config().hidden)),
      logits_(setup.prompts.size() * std::size_t(model_->config().vocab)),
      transfers_(context_, *selector_, setup.options.link),
      passes_(*kernels_, *model_, rope_, mostRows(setup.prompts), setup.abilities, clock_),
      promptAttention_(context_, *selector_, transfers_, clock_),
      promptReader_(passes_, promptAttention_, *model_, rope_, setup.prompts, clock_),
      stages_(context_, *selector_, transfers_, passes_, clock_, oracleOf(setup.options), {x_.data(), logits_.data()}) {
}

const float* CpuEngine::logits(int row) {
    return logits_.data() + std::size_t(row) * std::size_t(model_->config().vocab);
}

std::int32_t CpuEngine::chosenToken(int row) {
    const std::span<const float> all{logits(row), std::size_t(model_->config().vocab)};
    return allFinite(all) ? argMax(all) : -1;
}

void CpuEngine::beginPrompts(StepRecord& record) {
    record.layers.resize(std::size_t(model_->config().layers));
    clock_.beginStep();
    record.startNs = clock_.stepStartNs();
}

bool CpuEngine::readPrompt(int row, PromptCursor until, StepRecord& record, const Progress& progress,
                           const std::stop_token& stop) {
    float* last = x_.data() + std::size_t(row) * std::size_t(model_->config().hidden);
    return promptReader_.read(row, until, last, record, progress, stop);
}

void CpuEngine::finishPrompts(StepRecord& record) {
    clock_.run(record, StepStage::LmHead, [&] { passes_.head(x_.data(), context_.sequences(), logits_.data()); });
    record.durationNs = clock_.endStep();
}

void CpuEngine::prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    beginPrompts(record);
    for (int row = 0; row < context_.sequences(); ++row)
        readPrompt(row, {model_->config().layers, 0}, record, progress, stop);
    finishPrompts(record);
}

void CpuEngine::decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                       StepRecord& record) {
    record.layers.resize(std::size_t(model_->config().layers));
    clock_.beginStep();
    record.startNs = clock_.stepStartNs();
    stages_.begin(active, tokens, record);
    runStep(stages_, model_->config().layers);
    record.durationNs = clock_.endStep();
}

std::unique_ptr<DecodeEngine> makeCpuEngine(const EngineSetup& setup) {
    refuseTooLarge(cpuMemory(setup));
    return std::make_unique<CpuEngine>(setup);
}

} // namespace kvscope
