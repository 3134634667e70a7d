// Block diffusion on a GPU: reads the prompts by whole blocks, then makes forwards of the sequences' blocks. A forward
// is one launch of a graph. Every forward writes the keys and values of a block to the block's positions behind the
// prefix; those of the clean forward stay there, and the block is part of the prefix from then on. The prefix may wait
// on the host (CudaPrefix).
#pragma once

#include "core/cuda/diffusion/cuda_denoise_prompts.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/cuda/diffusion/cuda_prefix.h"
#include "core/cuda/diffusion/denoise_flight.h"
#include "core/cuda/diffusion/denoiser_layer.h"
#include "core/cuda/diffusion/diffusion_parts.h"
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

/// The rows of arrays in device memory are all sequences of the session, also those that a forward leaves out.
class CudaDenoiser final : public DenoiseEngine {
public:
    /// @throws Error(Unsupported | OutOfMemory | Device)
    CudaDenoiser(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup);
    /// The memory that an engine takes, as the engine declares it. This function takes none and needs no GPU. launch:
    /// the GPU's, see gpuLaunch (cuda_engine.h)
    static MemoryPlan memory(std::shared_ptr<const DeviceModel> model, const DenoiseSetup& setup,
                             const cuda::Launch& launch);
    /// The memory that this engine declared: the same list as the one above.
    const MemoryPlan& memory() const { return p_.arena.declared(); }
    std::size_t deviceBytes() const { return p_.arena.bytes(); }

    std::string description() const override;
    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override;
    void forward(std::span<const DenoiseRow> rows, StepRecord& record) override;
    std::span<const float> logits(int row, int token) const override;
    const Candidate* candidate(int row, int token) const override;
    Timing linkTiming() const override { return Timing::Measured; }
    void settle() override { cuda::check(cudaStreamSynchronize(stream_.get()), "finishing"); }

private:
    /// A forward in flight: its memory on the host, which the GPU reaches, and what it was told.
    struct Entry {
        std::byte *inputMemory = nullptr, *reportMemory = nullptr;
        FlightInputs inputs;
        DenoiseReport report;
        Flight flight;
        cuda::Event done;
    };
    /// Device memory of the choice of pages, see PageUnionArgs.
    struct PageMemory {
        float* scores = nullptr;
        std::uint32_t *words = nullptr, *arrivals = nullptr;
        std::int32_t *pages = nullptr, *count = nullptr;
    };
    /// Device memory of the choice of tiles.
    struct TileMemory {
        float2* weights = nullptr;         // see TileMaskArgs
        std::int64_t* headFirst = nullptr; // [sequence*queryHeads] first KV block of the query head's KV head
    };
    /// Device memory of what a forward is told and of what it reports, each in one piece.
    struct OnDevice {
        std::byte *inputMemory = nullptr, *reportMemory = nullptr;
        std::size_t inputBytes = 0, reportBytes = 0;
        FlightInputs inputs;
        DenoiseReport report;
    };
    /// How many thread blocks share the prefix of a row, and device memory for the attention over each share.
    struct Shares {
        int count = 1;
        int ofTiles = 1; // thread blocks where every query head has a list of tiles of its own
        float* partial = nullptr;
        float2* states = nullptr;
    };
    /// What a run keeps for its trace and for an observer.
    struct Recorded {
        bool changes = false;   // of queries, in runs of full attention too
        bool kvChanges = false; // of keys and values, in runs of full attention
        DenoiseObserver* observer = nullptr;
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

    // Forwards
    void start(Flight flight, std::span<const DenoiseRow> rows, int step);
    void launchForward(ForwardShape shape);
    void forwardKernels(ForwardShape shape);
    void layerKernels(LayerId layer, ForwardShape shape);
    void choose(LayerId layer, ForwardShape shape);
    void chooseAndLoad(LayerId layer, ForwardShape shape);
    void attend(LayerId layer, ForwardShape shape);
    void observe(LayerId layer);
    void observeLogits();
    void keepReport(const Entry& entry);
    bool namesActive() const { return options_.pages || recorded_.changes; }
    cuda::BlockRows rowsOf(LayerId layer) const;
    cuda::PageUnionArgs unionOf(LayerId layer) const;
    cuda::BlockRows tileHeads() const;
    cuda::TileMaskArgs maskOf(LayerId layer) const;

    DiffusionParts p_; // p_.products has a row for each token of all sequences' blocks
    const DenoiseOptions options_;
    const CandidateSampling sampling_;
    const Recorded recorded_;
    const FlightRules rules_;
    const int rows_, block_;
    PerLayer<DenoiserLayer> layers_; // the arena sets the pointers
    OnDevice device_;
    const std::unique_ptr<CudaPrefix> prefix_; // null: the prefix stays on the device
    CudaDenoisePrompts prompts_;
    PageMemory choice_;
    TileMemory tiles_;
    Shares shares_;
    float2* changes_ = nullptr;   // device memory [rows*block, queryHeads]
    float2* kvChanges_ = nullptr; // device memory [rows*block, 2 kvHeads]

    DenoiseReportReader reader_;
    Entry entries_[kEntries];
    int entry_ = 0;                             // of the last forward that was waited for
    bool ahead_ = false;                        // the forward after it has been started already
    Numbered<int> sequenceOf_;                  // [row of the last forward]
    Numbered<Candidate> candidates_;            // [rows*block]
    mutable std::vector<float> logitsHost_;     // of the last forward; empty until asked for
    mutable std::vector<std::uint16_t> merged_; // for the observer
    // The last members are destroyed first: the stream's destructor waits for its work.
    cuda::Executable graphs_[ForwardShape::kShapes];
    cuda::Stream stream_;
};

} // namespace kvscope
