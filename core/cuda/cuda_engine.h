// The CUDA backend: sets a session up on a GPU, reads its prompts and makes its decode steps. The engine connects parts
// with one purpose each: projections and feed-forwards (LayerPasses), the step graphs (StepGraphs), and what belongs to
// the sequences (CudaSequences): the rows of a step (RowTable), its stages (CudaStages), choices (BlockChoice) and
// transfers (Transfers), what a step reports (StepReports, ReportReader), and prompts (PromptReader).
#pragma once

#include "core/cuda/cuda_sequences.h"
#include "core/cuda/half_rows.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_graphs.h"
#include "core/session/engine.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// How kernels are launched on this GPU, on no stream yet.
cuda::Launch gpuLaunch(const cudaDeviceProp& gpu);
/// The GPU, its driver and what multiplies there, in one line.
std::string describeGpuEngine(const cuda::Linear& linear);

class CudaEngine {
public:
    /// @throws Error(Unsupported | OutOfMemory | Device)
    CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options);
    /// The memory of the GPU and of the host that an engine takes, as its parts declare it. This function takes none,
    /// and needs no GPU except for asynctls on a GPU with clusters. launch: the GPU's, see gpuLaunch
    static MemoryPlan memory(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options,
                             const cuda::Launch& launch);
    CudaEngine(const CudaEngine&) = delete;
    CudaEngine& operator=(const CudaEngine&) = delete;

    std::string description() const;
    /// The memory that this engine declared: the same list as the one above.
    const MemoryPlan& memory() const { return arena_.declared(); }
    std::size_t deviceBytes() const { return arena_.bytes(); }
    /// Bytes of the host store, whether its memory is lent or the engine's own.
    std::size_t hostBytes() const { return std::size_t(memory().bytes(MemoryTier::Host, Holds::Kv)); }
    /// With lookahead: true if one kernel makes all transfers of a step, false if every layer launches its own.
    bool transferLoop() const { return sequences_.transfers.hasLoop(); }

    void prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record, const Progress& progress,
                 const std::stop_token& stop);

    /// Sets the tokens that the next step feeds and its active rows. Copies only what differs from what the device
    /// holds.
    void setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active) {
        sequences_.rows.setInputs(tokens, active, stream());
    }
    /// Starts a step; at most two may be in flight.
    void launch(int step = -1); // step: its number, for the recorder of kernels
    /// Waits for the oldest step in flight. The tokens and logits of that step stay valid until the second launch after
    /// its own.
    void wait();
    int inFlight() const { return int(launched_ - waited_); }
    NumberedSpan<const std::int32_t> tokens() const; // [sequence] chosen by the last step waited for
    const float* logits(int sequence);               // float32 [vocab] on the host
    /// Fills a record from the last step waited for. active: the sequences of that step, ascending.
    void fill(StepRecord& record, std::span<const ActiveSequence> active) {
        sequences_.reader.fill(sequences_.reports.host(lastEntry()), record, active);
    }
    /// Waits until every step that was launched is over.
    void settle();
    /// GPU time of the last step waited for, in nanoseconds.
    std::int64_t stepNs() const;
    cudaStream_t stream() const { return graphs_.stream(); }
    const std::int32_t* devicePositions() const { return sequences_.rows.position; }

private:
    friend void fillContext(CudaEngine& engine, int tokens, std::uint64_t seed); // core/cuda/testing
    static constexpr int kEntries = StepReports::kEntries;

    /// Declares what the engine takes, and takes nothing.
    CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options, const cuda::Launch& launch);

    // Called once for each session
    void open();
    void openHalves();
    void prepareSteps();

    // Called once for each graph
    void stepKernels(int entry);
    void layersInHalves(const StepReport& report);
    /// Which report the last step waited for has written; 0, the prompt's, before the first step.
    int lastEntry() const { return waited_ == 0 ? 0 : int((waited_ - 1) % kEntries); }

    std::shared_ptr<const DeviceModel> model_;
    const CudaEngineOptions options_;
    const BatchLayout layout_;
    cuda::Launch launch_;
    StageRanges ranges_;
    DeviceArena arena_;
    StepBuffers buffers_;
    LayerPasses passes_;
    GpuClock clock_;
    std::vector<float> logitsHost_;
    bool logitsFetched_ = false;
    std::int64_t launched_ = 0, waited_ = 0;
    // The last members are destroyed first: their destructors wait for the work on their streams, and that work uses
    // the memory of the members above.
    CudaSequences sequences_;
    std::vector<std::unique_ptr<HalfRows>> halves_; // none, or two
    StepGraphs graphs_;
};

} // namespace kvscope
