// Masked diffusion on a GPU: the tokens of all canvases go through a layer together, each seeing every other one of its
// sequence. Keys and values lie at their own positions, so that Fast-dLLM's caches are what forwards of fewer tokens
// leave in place.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_model.h"
#include "core/cuda/diffusion/canvas_tokens.h"
#include "core/cuda/diffusion/cuda_canvas_features.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "core/session/canvas_engine.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/diffusion/canvas_keep.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

class CudaCanvas final : public CanvasEngine {
public:
    /// @throws Error(Unsupported | OutOfMemory | Device)
    CudaCanvas(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup);
    /// What an engine takes, as it declares it. Takes nothing and needs no GPU. launch: as gpuLaunch says it of the GPU
    static MemoryPlan memory(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup,
                             const cuda::Launch& launch);
    /// The same of this engine.
    const MemoryPlan& memory() const { return arena_.declared(); }

    std::string description() const override;
    void forward(std::span<const CanvasRow> rows, StepRecord& record) override;
    std::span<const float> logits(int row, int index) const override;
    const Candidate* candidate(int row, int index) const override;
    Timing linkTiming() const override { return Timing::Measured; }
    void settle() override { cuda::check(cudaStreamSynchronize(stream_.get()), "finishing"); }

private:
    /// What a sequence kept for the block that is being written.
    struct Kept {
        std::vector<std::vector<std::int32_t>> positions; // [layer] ascending
        bool used = false;                                // some forward attended to them
    };

    // Called once
    CudaCanvas(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup, const cuda::Launch& launch);
    void plan();
    void planKept();
    void open();
    DenoiseReportNeeds reportNeeds() const;
    int keptOf(int sequence) const;

    // Forwards
    void list(std::span<const CanvasRow> rows);
    void listRow(const CanvasRow& row);
    void send();
    void forwardKernels();
    void layerKernels(int layer);
    void featureKernels(int layer);
    void place(int layer, const CanvasTokens& tokens);
    void attend(int layer, const CanvasTokens& tokens);
    Stage attentionStage(int layer) const;
    std::size_t shareRoom() const;
    int splitsOf(const CanvasTokens& tokens) const;
    void chooseKept(int layer);
    void chooseCandidates();
    void keepReport(std::span<const CanvasRow> rows);
    void fill(std::span<const CanvasRow> rows, StepRecord& record);
    void fillTimes(StepRecord& record) const;
    void fillHead(int layer, int kvHead, const CanvasRow& row, StepRecord& record) const;
    void fillKept(const CanvasRow& row, const DenoiseLayer& out, StepRecord& record) const;
    void fillComputed(const CanvasRow& row, DenoiseLayer out, StepRecord& record) const;
    bool evicts() const { return options_.cache == CanvasCache::Evicted; }
    cuda::KeepArgs keepArgs(int layer) const;

    const std::shared_ptr<const Model> owner_; // of what the device's model came from
    const std::shared_ptr<const DeviceModel> model_;
    const ModelConfig& config_;
    const CanvasOptions options_;
    const bool recordsRows_; // how much values changed
    const CandidateSampling sampling_;
    const std::span<const std::uint8_t> allowedIds_;
    const std::vector<int> prompts_, tokens_; // [sequence] of the prompt; of prompt and canvas
    const CudaEngineOptions engine_;          // what the layouts and tables are made from
    const BatchLayout layout_;                // of the sequences
    const BatchLayout products_; // of what is projected together: all tokens of a forward, and the wanted ones
    const int sequences_, mostWanted_;
    cuda::Launch launch_;
    StageRanges ranges_;
    GpuTrace* const trace_;
    DeviceArena arena_;
    StepBuffers buffers_; // `x`: of the wanted positions
    LayerPasses passes_;
    RowTable table_; // rotary tables
    std::optional<CudaCanvasFeatures> features_;
    GpuClock clock_;

    // What a forward is told
    CanvasTokens computed_;
    ForwardArray<std::int32_t> ids_, wanted_; // [places]; [mostWanted] places
    ForwardArray<std::int32_t> ropeFirst_; // [2*sequences] rotary row of position 0; then of a sequence's kept tokens
    ForwardArray<cuda::KeepRow> choosing_; // [sequences]
    int wantedCount_ = 0, choosingCount_ = 0;
    bool attendsToAll_ = false;    // some row does
    std::vector<int> firstWanted_; // [row of the last forward]

    // Device memory; the arena sets the pointers
    std::vector<__nv_bfloat16*> blocks_;  // [layer] KV blocks of all sequences, behind them those of kept tokens
    std::vector<std::int64_t> headFirst_; // [2*sequences*kvHeads] first block of a head; then of its kept tokens
    std::int64_t blocksTotal_ = 0;        // of a layer
    std::int64_t* headFirstDevice_ = nullptr;
    float* x_ = nullptr;                   // [places, hidden] the residual stream
    std::uint8_t* allowed_ = nullptr;      // [vocab]
    cuda::BlockRow* wantedRows_ = nullptr; // [mostWanted] all taken
    std::uint64_t* wantedMasks_ = nullptr; // [mostWanted] all masked
    float *mean_ = nullptr, *importance_ = nullptr;
    float* partial_ = nullptr;     // [shareRoom(), dim] what shares of the keys come to
    float2* states_ = nullptr;     // [shareRoom()]
    std::int32_t* kept_ = nullptr; // [layer, sequences, mostKept]
    std::byte* reportRegion_ = nullptr;
    // Host memory that the GPU reaches
    std::int32_t* keptHost_ = nullptr;
    std::byte* reportHost_ = nullptr;
    std::uint64_t* clockMark_ = nullptr;

    int mostKept_ = 0, mostTokens_ = 0;
    std::size_t reportBytes_ = 0;
    DenoiseReport deviceReport_, hostReport_;
    const DenoiseOptions noPages_{}; // the reader's: nothing is chosen page by page
    DenoiseReportReader reader_;
    std::vector<Kept> keptOf_;              // [sequence]
    std::vector<Candidate> candidates_;     // [wanted of the last forward]
    mutable std::vector<float> logitsHost_; // of the last forward; empty until asked for
    cuda::Stream stream_;                   // destroyed first: its destructor waits for its work
};

} // namespace kvscope
