// Block diffusion on a GPU: prompts by whole blocks, then forwards of the sequences' blocks. A forward is one launch of
// a graph; keys and values of a block lie at its own positions behind the prefix, so that the clean forward leaves them
// in place.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_model.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "core/session/denoise_engine.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/block_place.h"
#include "kernels/cuda/diffusion/page_union.h"
#include "kernels/cuda/diffusion/tile_mask.h"

#include <memory>
#include <string>
#include <vector>

namespace kvscope {

/// Rows of the device's arrays are sequences, whether or not they have a forward.
class CudaDenoiser final : public DenoiseEngine {
public:
    /// @throws Error(Unsupported | OutOfMemory | Device)
    CudaDenoiser(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup);
    /// What an engine takes, as it declares it. Takes nothing and needs no GPU. launch: as gpuLaunch says it of the GPU
    static MemoryPlan memory(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup,
                             const cuda::Launch& launch);
    /// The same of this engine.
    const MemoryPlan& memory() const { return arena_.declared(); }
    std::size_t deviceBytes() const { return arena_.bytes(); }

    std::string description() const override;
    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override;
    void forward(std::span<const DenoiseRow> rows, StepRecord& record) override;
    std::span<const float> logits(int row, int token) const override;
    const Candidate* candidate(int row, int token) const override;
    Timing linkTiming() const override { return Timing::Measured; }
    void settle() override { cuda::check(cudaStreamSynchronize(stream_.get()), "finishing"); }

private:
    /// One layer's share of the device's memory.
    struct Layer {
        __nv_bfloat16* blocks = nullptr; // KV blocks of all sequences
        __nv_bfloat16* ranges = nullptr; // of pages, where the method chooses pages
        float* before = nullptr;         // queries of the forward before, where they are compared
        float* prefix = nullptr;         // attention over the prefix, where tokens reuse it
        float* prefixSums = nullptr;     // its log sums
        std::int32_t* tiles = nullptr; // of the prefix that each query head keeps, where each has a mask (TileMaskArgs)
        std::int32_t* tileCount = nullptr;
        float* beforeKv = nullptr; // keys and values of the forward before, where their changes are recorded
    };
    /// What a forward is told: the host uploads all of it, or the table alone where the forward before has written on
    /// the device.
    struct Inputs {
        cuda::BlockRow* table = nullptr; // [rows]
        std::uint64_t* masked = nullptr; // [rows] positions whose candidates are wanted
        std::int32_t* ids = nullptr;     // [rows*block]
        Inputs() = default;
        Inputs(std::byte* base, int rows, int block, std::size_t& bytes);
    };
    /// A row of a forward, without its ids.
    struct FlightRow {
        DenoiseRow row; // `wanted` and `ids` are not set
        std::uint32_t flags = 0;
        int masks = 0;
    };
    /// A forward on its way.
    struct Flight {
        std::vector<FlightRow> rows;
        ForwardShape shape;
    };
    static constexpr int kEntries = 2; // forwards in flight

    // Called once
    CudaDenoiser(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup, const cuda::Launch& launch);
    void plan();
    void planLayers();
    void planChoice();
    void planTiles();
    void uploadTileHeads();
    void open();
    DenoiseReportNeeds reportNeeds() const;

    // Prompts
    int promptTokens(int sequence) const;
    int pieceTokens() const;
    void readPrompt(int sequence, StepRecord& record, double& done, double all, const Progress& progress,
                    const std::stop_token& stop);
    void readPiece(int sequence, int layer, int first, int n, LayerRecord& out);
    void addTimes(LayerRecord& out) const;

    // Forwards
    bool isSparse(const DenoiseRow& row) const;
    bool choosesOnce(const DenoiseRow& row) const;
    int keptOf(const FlightRow& row) const;
    std::uint32_t flagsOf(const DenoiseRow& row) const;
    FlightRow flightOf(const DenoiseRow& row, int masks) const;
    bool writesOnDevice() const;
    int writesOf(const FlightRow& row) const;
    bool isAhead(std::span<const DenoiseRow> rows) const;
    void start(Flight flight, std::span<const DenoiseRow> rows, int step);
    bool startNext(int step);
    void launchForward(ForwardShape shape);
    void forwardKernels(ForwardShape shape);
    void layerKernels(int layer, ForwardShape shape);
    void choose(int layer, ForwardShape shape);
    void attend(int layer, ForwardShape shape);
    void observe(int layer);
    void observeLogits();
    void keepReport(const DenoiseReport& report);
    bool names() const { return options_.pages || comparesAlways_; }
    cuda::BlockRows rowsOf(int layer) const;
    cuda::PageUnionArgs unionOf(int layer) const;
    cuda::BlockRows tileHeads() const;
    bool weighs() const { return options_.tiles || options_.agnosticPages > 0; }
    cuda::TileMaskArgs maskOf(int layer) const;

    const std::shared_ptr<const Model> owner_; // of what the device's model came from
    const std::shared_ptr<const DeviceModel> model_;
    const ModelConfig& config_;
    const std::vector<std::vector<std::int32_t>>& prompts_;
    const DenoiseOptions options_;
    const CandidateSampling sampling_;
    const bool comparesAlways_;
    const bool recordsKv_; // the changes of keys and values, in runs of full attention
    DenoiseObserver* const observer_;
    const std::span<const std::uint8_t> allowedIds_;
    const CudaEngineOptions engine_; // what the layouts and tables are made from
    const BatchLayout layout_;       // of the sequences
    const BatchLayout products_;     // of what is projected together: a row for each token
    const int rows_, block_, splits_;
    const int tileSplits_; // splits_ where every query head has a list of its own
    cuda::Launch launch_;
    StageRanges ranges_;
    GpuTrace* const trace_;
    DeviceArena arena_;
    StepBuffers buffers_;
    LayerPasses passes_;
    RowTable table_; // rotary tables, and where the sequences' blocks begin
    GpuClock clock_;

    // Device memory; the arena sets the pointers
    std::vector<Layer> layers_;
    std::byte* inputRegion_ = nullptr;
    std::byte* reportRegion_ = nullptr;
    cuda::BlockRow* promptTable_ = nullptr; // [blocks of the longest prompt]
    std::int32_t* promptIds_ = nullptr;     // [tokens of the longest prompt]
    float* promptX_ = nullptr;              // [tokens of the longest prompt, hidden]
    std::uint8_t* allowed_ = nullptr;       // [vocab]
    float2* changes_ = nullptr;             // [rows*block, queryHeads]
    float2* kvChanges_ = nullptr;           // [rows*block, 2 kvHeads]
    float2* tileWeights_ = nullptr;         // see TileMaskArgs
    std::int64_t* tileHeadFirst_ = nullptr; // [sequence*queryHeads] first KV block of the query head's KV head
    float *scores_ = nullptr, *partial_ = nullptr;
    float2* states_ = nullptr;
    std::uint32_t *words_ = nullptr, *arrivals_ = nullptr;
    std::int32_t *pages_ = nullptr, *count_ = nullptr;
    // Host memory that the GPU reaches
    std::byte *inputHost_[kEntries] = {}, *reportHost_[kEntries] = {};
    std::uint64_t* promptMarks_ = nullptr; // [DenoiseReport::kMarks]

    std::size_t inputBytes_ = 0, reportBytes_ = 0;
    Inputs deviceInputs_, hostInputs_[kEntries];
    DenoiseReport deviceReport_, hostReport_[kEntries];
    DenoiseReportReader reader_;
    Flight flights_[kEntries];
    int entry_ = 0;                             // of the last forward that was waited for
    bool ahead_ = false;                        // the next one has been started
    std::vector<int> sequenceOf_;               // [row of the last forward]
    std::vector<Candidate> candidates_;         // [rows*block]
    mutable std::vector<float> logitsHost_;     // of the last forward; empty until asked for
    mutable std::vector<std::uint16_t> merged_; // for the observer
    // The last members are destroyed first: the stream's destructor waits for its work.
    cuda::Event done_[kEntries];
    cuda::Executable graphs_[ForwardShape::kShapes];
    cuda::Stream stream_;
};

} // namespace kvscope
