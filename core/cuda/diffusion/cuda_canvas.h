// Masked diffusion on a GPU: the tokens of all canvases go through a layer together, and each token sees all tokens of
// its sequence. The keys and values of a token lie at the token's position. A forward that computes fewer tokens leaves
// those of the others as they are; Fast-dLLM's caches need nothing more.
#pragma once

#include "core/cuda/diffusion/canvas_tokens.h"
#include "core/cuda/diffusion/cuda_canvas_features.h"
#include "core/cuda/diffusion/cuda_canvas_tiles.h"
#include "core/cuda/diffusion/cuda_denoise_report.h"
#include "core/cuda/diffusion/diffusion_parts.h"
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
    /// The memory that an engine takes, as the engine declares it. This function takes none and needs no GPU. launch:
    /// the GPU's, see gpuLaunch (cuda_engine.h)
    static MemoryPlan memory(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup,
                             const cuda::Launch& launch);
    /// The memory that this engine declared: the same list as the one above.
    const MemoryPlan& memory() const { return p_.arena.declared(); }

    std::string description() const override;
    void forward(std::span<const CanvasRow> rows, StepRecord& record) override;
    std::span<const float> logits(int row, int index) const override;
    const Candidate* candidate(int row, int index) const override;
    Timing linkTiming() const override { return Timing::Measured; }
    void settle() override { cuda::check(cudaStreamSynchronize(stream_.get()), "finishing"); }

private:
    /// The tokens that a sequence keeps while a block is written.
    struct Kept {
        PerLayer<std::vector<std::int32_t>> positions; // ascending
        bool used = false;                             // some forward attended to them
    };
    /// The tokens outside of blocks that are kept (CanvasCache::Evicted). All pointers but `host` are device memory.
    struct Keeping {
        int most = 0, mostTokens = 0; // kept tokens of a sequence; tokens of a sequence
        float *mean = nullptr, *importance = nullptr;
        std::int32_t *tokens = nullptr, *host = nullptr; // [layer, sequences, most]
        PerRow<Kept> of;
    };
    /// What the host tells the kernels of a forward.
    struct Told {
        CanvasTokens computed;
        ForwardArray<std::int32_t> ids, wanted; // [places]; [mostWanted] places
        ForwardArray<std::int32_t>
            ropeFirst; // [2*sequences] rotary row of position 0 of each sequence; then of place 0 among its kept tokens
        ForwardArray<cuda::KeepRow> choosing; // [sequences]
        int wantedCount = 0, choosingCount = 0;
        bool attendsToAll = false;   // some row attends to its whole sequence
        bool choosesTiles = false;   // the rows make their masks; all do in the same forward
        bool attendsByTiles = false; // the rows attend under their masks; all do in the same forward
        Numbered<int> firstWanted;   // [row] its first entry in `wanted`
    };
    /// Keys and values.
    struct Store {
        PerLayer<__nv_bfloat16*> blocks;     // KV blocks of all sequences, behind them those of kept tokens
        std::vector<std::int64_t> headFirst; // [2*sequences*kvHeads] first block of a head; then of its kept tokens
        std::int64_t blocksTotal = 0;        // of a layer
        std::int64_t* headFirstDevice = nullptr;
    };
    /// What a forward reports: on the device and its copy in host memory, which the GPU reaches.
    struct Reports {
        std::byte *deviceMemory = nullptr, *hostMemory = nullptr;
        std::size_t bytes = 0;
        DenoiseReport device, host;
    };

    // Called once
    CudaCanvas(std::shared_ptr<const DeviceModel> model, const CanvasSetup& setup, const cuda::Launch& launch);
    void plan();
    void planKept();
    void open();
    DenoiseReportNeeds reportNeeds() const;
    int keptOf(RowId sequence) const;

    // Forwards
    void list(std::span<const CanvasRow> rows);
    void listRow(const CanvasRow& row);
    void send();
    void forwardKernels();
    void layerKernels(LayerId layer);
    void featureKernels(LayerId layer);
    void place(LayerId layer, const CanvasTokens& tokens);
    void attend(LayerId layer, const CanvasTokens& tokens);
    Stage attentionStage(LayerId layer) const;
    std::size_t shareRoom() const;
    int splitsOf(const CanvasTokens& tokens) const;
    void chooseKept(LayerId layer);
    void chooseCandidates();
    void keepReport(std::span<const CanvasRow> rows);
    void fill(std::span<const CanvasRow> rows, StepRecord& record);
    void fillTimes(StepRecord& record) const;
    void fillHead(LayerId layer, KvHeadId kvHead, const CanvasRow& row, StepRecord& record) const;
    void fillKept(const CanvasRow& row, const DenoiseLayer& out, StepRecord& record) const;
    void fillComputed(const CanvasRow& row, DenoiseLayer out, StepRecord& record) const;
    void fillMasked(const CanvasRow& row, DenoiseLayer out, StepRecord& record) const;
    bool evicts() const { return options_.cache == CanvasCache::Evicted; }
    cuda::KeepArgs keepArgs(LayerId layer) const;

    DiffusionParts p_; // p_.products has a row for each wanted position, p_.buffers.x their residual streams
    const CanvasOptions options_;
    const bool recordsRows_; // whether densities of rows of tiles, and changes of values, are recorded
    const CandidateSampling sampling_;
    const PerRow<int> prompts_, tokens_; // [sequence] tokens of the prompt; of prompt and canvas together
    const int sequences_, mostWanted_;
    std::optional<CudaCanvasFeatures> features_;
    std::optional<CudaCanvasTiles> tiles_;

    Told told_;
    Store store_;
    Keeping keeping_;
    float* x_ = nullptr;                   // [places, hidden] the residual stream
    cuda::BlockRow* wantedRows_ = nullptr; // [mostWanted] all with the flag kTaken
    std::uint64_t* wantedMasks_ = nullptr; // [mostWanted] all 1: the only position of each row is masked
    float* partial_ = nullptr;             // [shareRoom(), dim] attention over shares of the keys, for mergeShares
    float2* states_ = nullptr;             // [shareRoom()] likewise, the softmax so far
    std::uint64_t* clockMark_ = nullptr;   // host memory that the GPU reaches

    Reports reports_;
    const DenoiseOptions noPages_{}; // for reader_: a canvas chooses no pages
    DenoiseReportReader reader_;
    Numbered<Candidate> candidates_;        // [wanted of the last forward]
    mutable std::vector<float> logitsHost_; // of the last forward; empty until asked for
    cuda::Stream stream_;                   // destroyed first: its destructor waits for its work
};

} // namespace kvscope
