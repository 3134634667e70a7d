// One request of an engine that serves many on a GPU: what belongs to its sequence, in memory of its own, which is
// taken when the request joins and given back when it leaves.
#pragma once

#include "core/cuda/cuda_sequences.h"
#include "core/session/row_engine.h"
#include "kernels/cuda/device/owners.h"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

namespace kvscope {

/// What rows have in common; everything must outlive them.
struct CudaRowParts {
    const std::shared_ptr<const DeviceModel>& model;
    const cuda::Launch& launch; // of the engine
    const StepBuffers& shared;  // row i of a step has the i-th part of every buffer
    BatchLayout& products;      // how many rows the passes multiply together
    LayerPasses& passes;
    const GpuClock& clock;
    StageRanges& ranges;
};

class CudaRow {
public:
    /// Declares what the row takes, and takes nothing. What `setup` refers to outlives the row. @throws
    /// Error(Unsupported)
    CudaRow(const EngineSetup& setup, const CudaRowParts& parts);
    CudaRow(const std::vector<std::int32_t>& prompt, CudaEngineOptions options, const CudaRowParts& parts);
    RowMemory memory() const;
    /// Takes the memory. Waits. @throws Error(OutOfMemory | Device)
    void open();

    /// See RowEngine::readLayers. until: in pieces of PromptReader::kPiece tokens
    bool read(PromptCursor until, const std::stop_token& stop);

    /// The row's next record begins, with as many steps before it as it has made.
    void begin(Phase phase);
    /// The next step feeds this token. @throws std::logic_error for a position that is not the row's next
    void beginStep(const RowToken& token);
    /// Sets the token that a step of this row alone feeds. Copies nothing where the device holds it.
    void feed(const RowToken& token);
    /// The row has place `place` in the shared buffers.
    void takePlace(int place);
    /// Launches all kernels of a step in which this row is alone.
    void launchStep();
    /// Launches the choice of the next token. how: the row's launch, or the same after a copy
    void launchSample(const cuda::Launch& how);
    /// After the step's kernels: copies the report to the host, on the step's stream.
    void copyReport() const { sequences.reports.copyOut(0, launch.stream); }
    /// When the report is there: fills the row's record. apart: the marks of the report are those of this row alone
    void finishStep(bool apart);

    const StepReport& report() const { return sequences.reports.device(0); }
    std::int32_t chosenToken() const { return sequences.reports.host(0).tokens[0]; }
    const float* hostLogits();

    const std::vector<std::int32_t>& prompt;
    StepRecord record;
    cuda::Launch launch;     // its stream: the engine's, or the row's own
    float* logits = nullptr; // device memory, [vocab]

private:
    friend void fillContext(CudaRow& row, int tokens, std::uint64_t seed); // core/cuda/testing
    const CudaRowParts p_;
    const CudaEngineOptions options_;
    const BatchLayout layout_;
    StepBuffers buffers_;
    DeviceArena arena_;
    std::unique_ptr<DeviceArena> promptArena_; // null when the prompt is read
    std::vector<float> logitsHost_;
    bool logitsFetched_ = false;
    int steps_ = 0, position_ = 0; // position_: of the token that is fed next

    void finishPrompt();

public:
    CudaSequences sequences;
    cuda::Event attended; // the row's part of a layer on its own stream is launched
    cuda::Stream own;     // for steps in which rows attend beside each other
};

} // namespace kvscope
