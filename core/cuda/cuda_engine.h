// The CUDA backend: one graph per decode step, both KV tiers, everything the recorder needs written by the kernels.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_model.h"
#include "core/cuda/device_selector.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/report_reader.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_report.h"
#include "core/session/engine.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/transfer_loop.h"

#include <array>
#include <cuda_runtime_api.h>
#include <functional>
#include <optional>

namespace kvscope {

class CudaEngine {
public:
    CudaEngine(std::shared_ptr<const DeviceModel> model, CudaEngineOptions options);
    CudaEngine(const CudaEngine&) = delete;
    CudaEngine& operator=(const CudaEngine&) = delete;

    std::string description() const;
    std::size_t deviceBytes() const { return arena_.bytes(); }
    std::size_t hostBytes() const { return storeBytes_ + (selector_ ? selector_->hostBytes() : 0); }
    /// Lookahead's transfers: one kernel for the whole step, or one for each layer.
    bool transferLoop() const { return transferLoop_; }

    void prefill(const std::vector<std::vector<std::int32_t>>& prompts, StepRecord& record, const Progress& progress,
                 const std::stop_token& stop);
    /// Stands in for a prompt: random keys, values and scores for `tokens` tokens of each sequence. For benchmarks.
    void fillContext(int tokens, std::uint64_t seed);

    /// What the next step feeds; only what differs from the device's own state is copied.
    void setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> active);
    /// Starts a step; at most two may be in flight.
    void launch(int step = -1); // step: its number, for whoever records kernels
    /// Waits for the oldest step in flight. Its tokens and logits stay valid until the next but one launch.
    void wait();
    int inFlight() const { return launched_ - waited_; }
    std::span<const std::int32_t> tokens() const; // [sequence] chosen by the last step waited for
    const float* logits(int sequence);            // float32 [vocab] on the host
    /// Fills a record from the last step waited for. active: its sequences, ascending.
    void fill(StepRecord& record, std::span<const ActiveSequence> active) {
        reader_.fill(lastReport(), record, active);
    }
    /// See GpuTrace::collect. all: waits for the GPU first.
    std::vector<SpanRecord> spans(bool all);
    /// GPU time of the last step waited for.
    std::int64_t stepNs() const { return std::int64_t(lastReport().stepMarks[kEnd] - lastReport().stepMarks[kEmbed]); }
    cudaStream_t stream() const { return stream_.get(); }
    const std::int32_t* devicePositions() const { return position_; }

private:
    static constexpr int kEntries = StepReports::kEntries;
    static constexpr int kExpertRows = 512; // tokens that go through the experts together
    using enum StepReport::Mark;
    using enum StepReport::StepMark;
    using Layer = DeviceLayerState;
    struct Lists { // of one layer's choice
        std::int32_t *block = nullptr, *slot = nullptr, *count = nullptr;
        cuda::BlockMove *loads = nullptr, *writeBacks = nullptr;
    };

    struct PromptBlocks { // of one layer and sequence, read or filled: head g's begin at blocks + g*headStride
        int layer = 0, sequence = 0, tokens = 0;
        __nv_bfloat16* blocks = nullptr;
        std::int64_t headStride = 0;
    };

    void planMemory();
    void planExperts();
    ReportNeeds reportNeeds() const;
    /// Of the last step waited for.
    const StepReport& lastReport() const { return reports_.host(int((waited_ - 1) % kEntries)); }
    void capture();
    void stepKernels(int entry);
    void decodeLayer(int index, const StepReport& report);
    void prefillSequence(int sequence, const std::vector<std::int32_t>& prompt, StepRecord& record,
                         const Progress& progress, double begin, double end, const std::stop_token& stop);
    void prefillAttend(const DevicePromptChunk& chunk);
    void handToSelector(const PromptBlocks& prompt);
    void placeTail(const PromptBlocks& prompt);
    void storeOnHost(const PromptBlocks& prompt, cudaStream_t stream);
    void measureMass(int index, const StepReport& report);
    void embed(const std::int32_t* ids, int n, float* x, std::uint32_t* clear = nullptr, int clearCount = 0,
               std::uint64_t* mark = nullptr);
    void projectHeads(const DeviceLayer& weights, const float* x, int n, std::uint64_t* mark);
    cuda::AppendArgs appendArgs(int index, const StepReport& report) const;
    void appendTokens(const cuda::AppendArgs& args);
    void projectAndAppend(int index, const StepReport& report);
    void placePrompt(const cuda::PromptArgs& args);
    const __nv_bfloat16* leaveLatent(const DeviceLayer& weights, int n);
    void applyExperts(const DeviceLayer& weights, float* x, int n, std::uint64_t* mark);
    void finishLayer(int index, float* x, int n, std::uint64_t* oMark, std::uint64_t* ffnMark);
    cuda::SelectArgs selectArgs(int index) const;
    cuda::SelectArgs decodeSelectArgs(int index, const StepReport& report) const;
    cuda::GatherArgs gatherArgs(int index, const StepReport& report) const;
    Lists listsOf(int index) const;
    // Layers chosen ahead: cuda_engine_ahead.cpp
    /// See Abilities::valuesByToken.
    bool valuesByToken(int index) const {
        return selector_ && options_.abilities.valuesByToken && layers_[std::size_t(index)].sparse;
    }
    void lookAhead(int index, const StepReport& report);
    void fork();
    cuda::GatherArgs besideArgs(int index, const StepReport& report, cuda::GatherArgs::Part part) const;
    int besideBlocks() const;
    void moveBeside(int index, const StepReport& report, cuda::GatherArgs::Part part);
    void startTransferLoop(int entry);
    void handOver(int listed, int awaited, std::uint64_t* ready);
    cuda::Launch join(int index);
    void joinAll();
    DeviceStep deviceStep(int index, const StepReport& report) const;
    void chooseAndLoad(int index, const StepReport& report, cuda::DecodeAttentionArgs& attend);
    cuda::NextTokenArgs nextTokenArgs(const float* logits, std::int32_t* record) const;
    void drawNumbers();

    std::shared_ptr<const DeviceModel> model_;
    const CudaEngineOptions options_;
    const SelectionSpec& spec_;
    const BatchLayout layout_;
    const bool oneByOne_; // kernels are launched without a graph, each inside its stage's NVTX range
    StageRanges stages_;
    cuda::Launch launch_;
    std::unique_ptr<cuda::Linear> linear_;
    DeviceArena arena_;
    PinnedMemory store_, promptReport_;
    std::size_t storeBytes_ = 0;
    std::vector<Layer> layers_;
    std::unique_ptr<DeviceSelector> selector_; // null: the method is data
    ChoiceOrder order_;
    bool transferLoop_ = false;                    // one transfer kernel for the whole step
    cuda::GatherArgs* loopGathers_[kEntries] = {}; // [layers], with it
    cuda::TransferFlags flags_;
    std::uint32_t loops_ = 1; // steps with their transfer kernels, and the one that was tried without
    StepReports reports_;
    GpuClock clock_;
    ReportReader reader_;
    std::vector<std::uint64_t*> promptMarks_;

    // Device scratch
    float *x_ = nullptr, *promptX_ = nullptr, *qkv_ = nullptr, *logits_[kEntries] = {}, *partial_ = nullptr;
    __nv_bfloat16 *q_ = nullptr, *attended_ = nullptr, *hidden_ = nullptr, *newKey_ = nullptr, *newValue_ = nullptr;
    __nv_bfloat16* scratch_[2] = {};  // one layer's blocks of one prompt
    float* plainQ_ = nullptr;         // latent attention: queries from their own latent
    __nv_bfloat16* output_ = nullptr; // and what comes back from the latent space
    cuda::LatentTokens latent_;       // what the last projections made
    // Mixtures of experts: expertRows_ tokens at a time
    int expertRows_ = 0;
    __nv_bfloat16 *expertInput_ = nullptr, *expertHidden_ = nullptr;
    float *routerLogits_ = nullptr, *expertWeights_ = nullptr, *expertResults_ = nullptr, *sharedResult_ = nullptr;
    std::int32_t *expertChosen_ = nullptr, *expertCounts_ = nullptr, *expertPairs_ = nullptr;
    RopeTables ropeTables_;
    float *ropeCos_ = nullptr, *ropeSin_ = nullptr;
    std::int32_t* ropeFirst_ = nullptr; // [sequence]
    std::int32_t *position_ = nullptr, *promptPositions_ = nullptr, *next_ = nullptr, *promptIds_ = nullptr;
    float* blockLogSums_ = nullptr;  // with the oracle
    float* promptLogSums_ = nullptr; // where the selector needs them
    std::int32_t *listBlock_ = nullptr, *listSlot_ = nullptr, *listCount_ = nullptr;
    std::uint8_t* active_ = nullptr;
    double* draws_ = nullptr;              // [sequence, drawsPerRow_]
    std::int32_t* firstSampled_ = nullptr; // [sequence] position that takes the first draw
    int drawsPerRow_ = 0;
    std::uint32_t *arrivals_ = nullptr, *counters_ = nullptr;
    std::int64_t *blockFirstDevice_ = nullptr, *windowFirstDevice_ = nullptr, *tokenFirstDevice_ = nullptr,
                 *poolFirstDevice_ = nullptr;
    cuda::BlockMove *loads_ = nullptr, *writeBacks_ = nullptr;

    std::vector<std::int32_t> nextHost_; // what the device will feed
    std::vector<std::uint8_t> activeHost_;
    std::vector<float> logitsHost_;
    int logitsFetched_ = -1;
    std::int64_t launched_ = 0, waited_ = 0;

    cuda::Event done_[kEntries], computed_, copied_[2], chosen_, loaded_[2]; // these where the method looks ahead
    cuda::Executable graph_[kEntries];
    // Last, and so destroyed first: a stream waits for its work, which uses the memory above.
    cuda::Stream stream_, copyStream_, aheadStream_; // this likewise
};

} // namespace kvscope
