// CPU backend: rows that come and go. Every row has the sequences' part of an engine for itself; the passes around the
// attention are shared.
#include "base/clock.h"
#include "base/indexed.h"
#include "core/engine/cpu/cpu_memory.h"
#include "core/engine/cpu/cpu_row_stages.h"
#include "core/model/mapped_watch.h"
#include "core/session/row_engine.h"

#include <algorithm>

namespace kvscope {
namespace {

/// What belongs to one request.
struct CpuRow {
    CpuRow(const EngineSetup& setup, Kernels& kernels, CpuLayerPasses& passes, StageClock& clock)
        : sequences(setup, kernels, passes, clock), attention(sequences, clock),
          last(std::size_t(setup.model->config().hidden)), logits(std::size_t(setup.model->config().vocab)) {
        begin(Phase::Prefill);
    }
    /// Clears the record for the row's next step. The record of the prompt has step 0, every later one a step more.
    void begin(Phase phase) {
        record.clear();
        record.step = steps++;
        record.phase = phase;
        record.layers.resize(sequences.context.shape.layers);
    }

    CpuSequences sequences;
    CpuRowAttention attention;
    StepRecord record;
    AlignedBuffer<float> last, logits; // [hidden] the residual stream of the prompt's last token; [vocab]
    int steps = 0;
};

class CpuRowEngine final : public RowEngine {
public:
    explicit CpuRowEngine(const RowEngineSetup& setup)
        : model_(setup.model), kernels_(makeCpuKernels(setup.threads)), clock_(steadyNowNs()),
          passes_(*kernels_, *model_, std::size_t(std::max(setup.rows, kPromptPieceTokens)), setup.abilities, clock_),
          logitsAt_(setup.rows, config().vocab), x_(Extents<int, int>(setup.rows, config().hidden).size()),
          logits_(logitsAt_.size()), stages_(passes_, clock_, config().layers, x_.data(), logits_.data()),
          rows_(setup.rows) {}

    std::string description() const override { return kernels_->description(); }
    int pieceTokens() const override { return kPromptPieceTokens; }

    void open(RowId row, const EngineSetup& setup) override {
        refuseTooLarge(cpuMemory(setup));
        rows_[index(row)] = std::make_unique<CpuRow>(setup, *kernels_, passes_, clock_);
    }
    void close(RowId row) override { rows_[index(row)].reset(); }

    bool readLayers(RowId row, LayerId layer, int token, const std::stop_token& stop) override {
        CpuRow& r = *rows_[index(row)];
        const PromptCursor until{layer, (token + kPromptPieceTokens - 1) / kPromptPieceTokens};
        return finishPrompt(r, r.sequences.promptReader.read(RowId{0}, until, r.last.data(), r.record, {}, stop));
    }
    bool readChunk(RowId row, int token, const std::stop_token& stop) override {
        CpuRow& r = *rows_[index(row)];
        const int until = (token + kPromptPieceTokens - 1) / kPromptPieceTokens;
        return finishPrompt(r, r.sequences.promptReader.readChunk(RowId{0}, until, r.last.data(), r.record, {}, stop));
    }

    void decode(std::span<const RowToken> rows) override {
        step_.clear();
        for (const RowToken& token : rows) {
            CpuRow& r = *rows_[index(token.row)];
            r.begin(Phase::Decode);
            r.record.tokens = 1;
            r.record.opensBlock = token.position % r.sequences.spec.blockSize == 0;
            step_.push_back({&r.attention, &r.record, &r.sequences.rope, token});
        }
        clock_.beginStep();
        stages_.begin(step_);
        kernels_->inputsAlone(true); // tokens do not depend on who shares the step
        runStep(stages_, config().layers);
        kernels_->inputsAlone(false);
        const std::int64_t took = clock_.endStep();
        int at = 0; // in the step
        for (const RowToken& token : rows) {
            CpuRow& r = *rows_[index(token.row)];
            r.record.durationNs = took;
            std::copy_n(logits_.data() + logitsAt_.first(at++), logitsAt_.under(0), r.logits.data());
        }
    }

    const StepRecord& record(RowId row) const override { return rows_[index(row)]->record; }
    const float* logits(RowId row) const override { return rows_[index(row)]->logits.data(); }

private:
    const ModelConfig& config() const { return model_->config(); }
    bool finishPrompt(CpuRow& row, bool read) {
        if (read) passes_.head(row.last.data(), 1, row.logits.data());
        return read;
    }

    const CutFilesReadAsZeros zeros_; // serve::Engine asks whether some were read before it hands out a token
    const std::shared_ptr<const Model> model_;
    const std::unique_ptr<Kernels> kernels_;
    StageClock clock_;
    CpuLayerPasses passes_;
    const Extents<int, int> logitsAt_; // [rows of a step, vocab]
    AlignedBuffer<float> x_, logits_;  // x_ [rows of a step, hidden]
    CpuRowStages stages_;
    Numbered<std::unique_ptr<CpuRow>> rows_;
    std::vector<CpuRowStages::Row> step_;
};

} // namespace

std::unique_ptr<RowEngine> makeCpuRowEngine(const RowEngineSetup& setup) {
    return std::make_unique<CpuRowEngine>(setup);
}

} // namespace kvscope
