#include "core/engine/cpu/cpu_engine.h"

#include "base/clock.h"
#include "core/engine/cpu/cpu_memory.h"
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

std::optional<CpuAttention::Oracle> oracleOf(const SessionOptions& options) {
    if (!options.oracle) return std::nullopt;
    return CpuAttention::Oracle{options.oracleObserver};
}

} // namespace

CpuEngine::CpuEngine(const EngineSetup& setup)
    : model_(setup.model), kernels_(makeCpuKernels(setup.options.threads)), clock_(steadyNowNs()),
      passes_(*kernels_, *model_, mostRows(setup.prompts), setup.abilities, clock_),
      sequences_(setup, *kernels_, passes_, clock_), streamAt_(sequences_.context.sequences(), model_->config().hidden),
      logitsAt_(sequences_.context.sequences(), model_->config().vocab), x_(streamAt_.size()),
      logits_(logitsAt_.size()), stages_(sequences_.context, *sequences_.selector, sequences_.transfers, passes_,
                                         clock_, oracleOf(setup.options), {x_.data(), logits_.data()}) {}

const float* CpuEngine::logits(int row) { return logits_.data() + logitsAt_.first(row); }

std::int32_t CpuEngine::chosenToken(int row) {
    const std::span<const float> all{logits(row), logitsAt_.under(0)};
    return allFinite(all) ? argMax(all) : -1;
}

void CpuEngine::beginPrompts(StepRecord& record) {
    record.layers.resize(model_->config().layers);
    clock_.beginStep();
    record.startNs = clock_.stepStartNs();
}

bool CpuEngine::readPrompt(RowId row, PromptCursor until, StepRecord& record, const Progress& progress,
                           const std::stop_token& stop) {
    float* last = x_.data() + streamAt_.first(row);
    return sequences_.promptReader.read(row, until, last, record, progress, stop);
}

bool CpuEngine::readPromptChunk(RowId row, int until, StepRecord& record) {
    float* last = x_.data() + streamAt_.first(row);
    return sequences_.promptReader.readChunk(row, until, last, record, {}, {});
}

void CpuEngine::finishPrompts(StepRecord& record) {
    clock_.run(record, StepStage::LmHead,
               [&] { passes_.head(x_.data(), sequences_.context.sequences(), logits_.data()); });
    record.durationNs = clock_.endStep();
}

void CpuEngine::prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    beginPrompts(record);
    for (const RowId row : idsUpTo<RowId>(sequences_.context.sequences()))
        readPrompt(row, {LayerId{model_->config().layers}, 0}, record, progress, stop);
    finishPrompts(record);
}

void CpuEngine::decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                       StepRecord& record) {
    record.layers.resize(model_->config().layers);
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
