// The CPU backend: kernels/cpu, float32 KV cache, modelled link.
#pragma once

#include "core/engine/cpu/cpu_sequences.h"
#include "core/engine/cpu/cpu_stages.h"
#include "core/session/engine.h"

#include <memory>
#include <string>
#include <vector>

namespace kvscope {

class CpuEngine final : public DecodeEngine {
public:
    explicit CpuEngine(const EngineSetup& setup);
    std::string description() const override { return kernels_->description(); }
    Timing linkTiming() const override { return Timing::Modelled; }
    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override;
    void decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                StepRecord& record) override;
    const float* logits(int row) override;
    std::int32_t chosenToken(int row) override;

    /// The parts of prefill, so that prompts can be read in turns: call beginPrompts, then readPrompt for every row
    /// until readPrompt returns true, then finishPrompts. See CpuPromptReader::read.
    void beginPrompts(StepRecord& record);
    bool readPrompt(RowId row, PromptCursor until, StepRecord& record, const Progress& progress = {},
                    const std::stop_token& stop = {});
    /// Reads a prompt so that every piece goes through all layers before the next piece. See
    /// CpuPromptReader::readChunk.
    bool readPromptChunk(RowId row, int until, StepRecord& record);
    void finishPrompts(StepRecord& record);
    /// How far the row's prompt has been read.
    PromptCursor promptAt(RowId row) const { return sequences_.promptReader.at(row); }

private:
    const std::shared_ptr<const Model> model_;
    const std::unique_ptr<Kernels> kernels_;
    StageClock clock_;
    CpuLayerPasses passes_;
    CpuSequences sequences_;
    const Extents<RowId, int> streamAt_; // [rows, hidden]
    const Extents<int, int> logitsAt_;   // [rows of a step, vocab]
    AlignedBuffer<float> x_, logits_;
    CpuStages stages_;
};

} // namespace kvscope
