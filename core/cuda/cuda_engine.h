// The CUDA backend: a session's set-up on a GPU, its prompts and its steps. Parts of one purpose each do the work: the
// rows of a step (RowTable), its stages (CudaStages) with projections and feed-forwards (LayerPasses), choices
// (BlockChoice) and transfers (Transfers), its graphs (StepGraphs), what it reports (StepReports, ReportReader), and
// prompts (PromptReader).
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/block_choice.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/cuda_stages.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_model.h"
#include "core/cuda/device_selector.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/prompt_reader.h"
#include "core/cuda/report_reader.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "core/cuda/step_graphs.h"
#include "core/cuda/step_report.h"
#include "core/cuda/transfers.h"
#include "core/session/engine.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

class CudaEngine {
public:
    /// @throws Error(Unsupported | OutOfMemory | Device)
    CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options);
    CudaEngine(const CudaEngine&) = delete;
    CudaEngine& operator=(const CudaEngine&) = delete;

    std::string description() const;
    std::size_t deviceBytes() const { return arena_.bytes(); }
    std::size_t hostBytes() const { return storeBytes_ + (selector_ ? selector_->hostBytes() : 0); }
    /// Lookahead's transfers: one kernel for the whole step, or one for each layer.
    bool transferLoop() const { return transfers_.hasLoop(); }

    void prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record, const Progress& progress,
                 const std::stop_token& stop);

    /// What the next step feeds; only what differs from the device's own state is copied.
    void setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active) {
        rows_.setInputs(tokens, active, stream());
    }
    /// Starts a step; at most two may be in flight.
    void launch(int step = -1); // step: its number, for whoever records kernels
    /// Waits for the oldest step in flight. Its tokens and logits stay valid until the next but one launch.
    void wait();
    int inFlight() const { return int(launched_ - waited_); }
    std::span<const std::int32_t> tokens() const; // [sequence] chosen by the last step waited for
    const float* logits(int sequence);            // float32 [vocab] on the host
    /// Fills a record from the last step waited for. active: its sequences, ascending.
    void fill(StepRecord& record, std::span<const ActiveSequence> active) {
        reader_.fill(reports_.host(lastEntry()), record, active);
    }
    /// Waits until every step that was launched is over.
    void settle();
    /// GPU time of the last step waited for.
    std::int64_t stepNs() const;
    cudaStream_t stream() const { return graphs_.stream(); }
    const std::int32_t* devicePositions() const { return rows_.position; }

private:
    friend void fillContext(CudaEngine& engine, int tokens, std::uint64_t seed); // core/cuda/testing
    static constexpr int kEntries = StepReports::kEntries;
    using Layer = DeviceLayerState;

    // Once a session
    void refuseUnsupported() const;
    void makeSelector();
    void planMemory();
    void openStore();
    void prepareSteps();
    ReportNeeds reportNeeds() const;

    // Once a graph
    void stepKernels(int entry);
    /// The report of the last step waited for; of the prompt, before any.
    int lastEntry() const { return waited_ == 0 ? 0 : int((waited_ - 1) % kEntries); }

    std::shared_ptr<const DeviceModel> model_;
    const CudaEngineOptions options_;
    const SelectionSpec& spec_;
    const BatchLayout layout_;
    cuda::Launch launch_;
    StageRanges ranges_;
    DeviceArena arena_;
    PinnedMemory store_;
    std::size_t storeBytes_ = 0;
    std::vector<Layer> layers_;
    std::unique_ptr<DeviceSelector> selector_; // null: the method is data
    ChoiceOrder order_;
    RowTable rows_;
    StepBuffers buffers_;
    BlockChoice choice_;
    LayerPasses passes_;
    StepReports reports_;
    GpuClock clock_;
    ReportReader reader_;
    PromptReader prompts_;
    std::vector<float> logitsHost_;
    bool logitsFetched_ = false;
    std::int64_t launched_ = 0, waited_ = 0;
    // Last, and so destroyed first: their streams wait for their work, which uses the memory above.
    Transfers transfers_;
    CudaStages stages_;
    StepGraphs graphs_;
};

} // namespace kvscope
