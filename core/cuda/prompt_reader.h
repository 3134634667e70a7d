// Reads prompts into the cache, layer by layer and in each layer piece by piece. The blocks of an offloaded layer are
// copied to the host while the next layer computes. The reader of a single sequence can stop before any piece and go on
// later, and it can read in chunks: some pieces through all layers, then the next ones.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/block_choice.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/row_table.h"
#include "core/cuda/transfers.h"
#include "core/engine/prompt_cursor.h"
#include "core/session/engine.h"

#include <memory>
#include <stop_token>
#include <vector>

namespace kvscope {

/// What the reader uses; everything must outlive the reader.
struct PromptReaderParts {
    const DeviceModel& model;
    const CudaEngineOptions& options;
    const BatchLayout& layout;
    const PerLayer<DeviceLayerState>& layers;
    const std::unique_ptr<DeviceSelector>& selector;
    const RowTable& rows;
    const StepBuffers& buffers;
    const BlockChoice& choice;
    const Transfers& transfers;
    const GpuClock& clock;
    const cuda::Launch& launch;
    LayerPasses& passes;
    StageRanges& stages;
};

class PromptReader {
public:
    explicit PromptReader(const PromptReaderParts& parts);

    /// Asks the arena for the prompts' memory.
    void plan(DeviceArena& arena);
    /// Fills the arena's memory, after it has been taken. Waits. @throws Error(OutOfMemory | Device)
    void open();
    /// Host memory for marks of the GPU's timer: that of layer 0.
    std::uint64_t* marks() const { return marksOf(LayerId{0}); }

    /// Reads the prompt of one sequence and adds times and bytes to the record's layers. progress: told shares from
    /// `begin` to `end`. @throws Error(Cancelled)
    void read(RowId sequence, const std::vector<std::int32_t>& prompt, StepRecord& record, const Progress& progress,
              double begin, double end, const std::stop_token& stop);
    /// Goes on reading the prompt of sequence 0 up to the piece before `until`. What is kept between two calls (x,
    /// scratch) belongs to this reader, so that other readers may work between them.
    /// @return whether all of the prompt is read; x then ends with its last token. @throws Error(Cancelled) between two
    /// layers; reading can go on later
    bool readTo(PromptCursor until, const std::vector<std::int32_t>& prompt, StepRecord& record,
                const std::stop_token& stop);

    /// Goes on reading the prompt of sequence 0 in chunks, up to the piece before `until`; otherwise as readTo. Only
    /// with RowTransfers::chunkTokens, and without a selector.
    bool readChunk(int until, const std::vector<std::int32_t>& prompt, StepRecord& record, const std::stop_token& stop);

    static constexpr int kPiece = BatchLayout::kPieceTokens; // tokens projected together at most
    /// Tokens projected together. chunkTokens: tokens of a chunk; 0: prompts are read layer by layer.
    static constexpr int pieceTokens(int chunkTokens) {
        return chunkTokens > 0 && chunkTokens < kPiece ? chunkTokens : kPiece;
    }
    int piecesOf(int tokens) const { return (tokens + piece_ - 1) / piece_; }
    /// The residual stream of a token that was read last.
    const float* activationsOf(int token) const { return RowsOf(x, config_.hidden)[token - xFirst_]; }

    /// The blocks of a sequence in a layer while the prompt fills them. The blocks of head g begin at blocks +
    /// g*headStride.
    struct Blocks {
        LayerId layer{};
        RowId sequence{};
        int tokens = 0;
        __nv_bfloat16* blocks = nullptr;
        std::int64_t headStride = 0;
    };
    Blocks blocksOf(LayerId layer, RowId sequence, int tokens) const;
    /// Called when the blocks are filled: hands them to the selector, and puts the newest block of an offloaded layer
    /// into a slot.
    void finish(const Blocks& filled) const;
    /// Copies the full blocks of an offloaded layer to the host store.
    void store(const Blocks& filled, cudaStream_t stream) const;

    // Device memory; the arena sets the pointers
    // [maxPrompt, hidden] the residual stream; in chunks [chunkTokens, hidden] of the present chunk
    float* x = nullptr;
    std::int32_t *ids = nullptr, *positions = nullptr; // [maxPrompt]
    float* logSums = nullptr;                          // [pieceTokens, queryHeads], with Abilities::logSums
    __nv_bfloat16* scratch[2] = {}; // blocks of one layer and sequence that do not stay on the device
    // Where prompts are read in chunks: each layer's blocks until the prompt is read; null: the layer is not offloaded
    PerLayer<__nv_bfloat16*> kept;
    __nv_bfloat16* bounce = nullptr; // host memory, with StorePlan::Bounce: blocks of a layer on their way

private:
    struct Piece { // tokens [first, first + n) of a prompt in one layer
        int first = 0, n = 0, promptTokens = 0;
        float* x = nullptr;
        std::uint64_t* marks = nullptr;
    };
    bool inChunks() const { return p_.options.transfers.plan.chunkTokens > 0; }
    void embed(const std::vector<std::int32_t>& prompt, int first, int end) const;
    void readPieces(const Blocks& blocks, int from, int to, LayerRecord& out) const;
    void finishLayer(const Blocks& blocks, int from, LayerRecord& out) const;
    void storePieces(const Blocks& blocks, int from, int to, LayerRecord& out) const;
    void storeQuantised(const Blocks& filled, int first, int end, cudaStream_t stream) const;
    void storeRange(const Blocks& filled, int first, int end, cudaStream_t stream) const;
    void readPiece(const Blocks& blocks, const Piece& piece) const;
    void attend(const DevicePromptPiece& piece) const;
    void attendSparsely(const DevicePromptPiece& piece) const;
    void addTimes(const Blocks& blocks, int from, int to, LayerRecord& out) const;
    void handToSelector(const Blocks& filled) const;
    void placeTail(const Blocks& filled) const;
    int marksOfLayer() const { return piecesOf(p_.options.maxPrompt) * StepReport::kMarks; }
    std::uint64_t* marksOf(LayerId layer) const { return RowsOf(report_, marksOfLayer())[int(layer)]; }

    const PromptReaderParts p_;
    const ModelConfig& config_;
    const SelectionSpec& spec_;
    std::uint64_t* report_ = nullptr; // host memory, [layers][marksOfLayer()]
    const int piece_;                 // tokens projected together
    PromptCursor at_;                 // of readTo and readChunk
    int chunkEnd_ = 0, xFirst_ = 0;   // of readChunk: the piece behind the present chunk, and its first token
    cuda::Event computed_, copied_[2];
};

} // namespace kvscope
