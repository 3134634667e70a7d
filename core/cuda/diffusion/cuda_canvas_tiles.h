// SparseD's part of a forward over a canvas on a GPU: it makes the masks once in a run and attends under them.
#pragma once

#include "base/indexed.h"
#include "core/cuda/diffusion/canvas_tokens.h"
#include "core/cuda/step_buffers.h"
#include "core/model/model_config.h"
#include "core/select/canvas.h"
#include "core/session/canvas_engine.h"
#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/canvas_tiles.h"

#include <span>
#include <vector>

namespace kvscope {

/// One mask per layer and sequence, over prompt and canvas. Every query head keeps tiles of its own, so the attention
/// runs as if every query head had a KV head of its own. A tile of keys is a KV block.
class CudaCanvasTiles {
public:
    struct Parts { // everything must outlive the object
        const CanvasOptions& options;
        const ModelConfig& config;
        const cuda::AttentionShape& shape;
        const StepBuffers& buffers;
        const cuda::Launch& launch;
    };
    /// prompts, tokens: [sequence] the tokens of the prompt; those of prompt and canvas together. @throws
    /// Error(Unsupported)
    CudaCanvasTiles(const Parts& parts, const PerRow<int>& prompts, const PerRow<int>& tokens);
    /// Tokens that attend together: a tile has a whole number of such rows, and a row at most cuda::kMostDenoised.
    static int rowTokens(int tile);

    void plan(DeviceArena& arena);
    /// headFirst: [sequence*kvHeads + g] first KV block of a head, on the host and on the GPU.
    void open(std::span<const std::int64_t> headFirst, const std::int64_t* onDevice);

    /// Forgets the rows of the forward before.
    void begin() { rows_.clear(); }
    /// Adds a row of the forward, all tokens of its sequence: they lie from `place` and from row `tile` of the
    /// forward's tokens on.
    void add(const CanvasRow& row, int place, int tile) { rows_.push_back({row.sequence, place, tile}); }

    struct Marks {
        std::uint64_t *score = nullptr, *choose = nullptr;
    };
    /// Makes the masks of the listed rows in a layer, whose queries and keys are there. blocks: of the layer.
    void make(LayerId layer, const CanvasTokens& tokens, const __nv_bfloat16* blocks, const Marks& marks,
              cudaStream_t stream) const;
    /// Copies to the host what the trace says of the masks. Called when the last layer's kernels have been launched.
    void collect(cudaStream_t stream) const;
    /// The listed rows attend under their masks.
    void attend(LayerId layer, const CanvasTokens& tokens, const __nv_bfloat16* blocks, std::uint64_t* mark) const;

    /// The tiles that any query head of the KV head's group keeps for any row, ascending.
    std::vector<std::int32_t> united(LayerId layer, RowId sequence, KvHeadId kvHead) const;
    /// [group, rows of tiles] the share of prompt and canvas that each query head of the KV head keeps.
    std::span<const float> densities(LayerId layer, RowId sequence, KvHeadId kvHead) const;

private:
    struct Row {
        RowId sequence{};
        int place = 0, tile = 0;
    };
    struct Layer { // of all sequences: [rows, queryHeads, capacity_]; [rows, queryHeads]
        std::int32_t *tiles = nullptr, *count = nullptr;
    };

    int tilesOf(RowId sequence) const;
    int rowsOf(RowId sequence) const;
    int keptOf(RowId sequence) const;
    int generatedOf(RowId sequence) const;
    int keptGeneratedOf(RowId sequence) const;
    std::size_t wordsOf(RowId sequence) const { return (Elements(tilesOf(sequence)) + 31) / 32; }
    std::size_t unitedFirst(LayerId layer, RowId sequence) const;
    std::size_t densitiesFirst(LayerId layer, RowId sequence) const;
    cuda::CanvasTileArgs argsOf(LayerId layer, const Row& row) const;

    const Parts p_;
    const PerRow<int> prompts_, tokens_;
    const int rowTokens_;
    PerRow<int> firstRow_;         // of the sequence's lists in a Layer
    int rowsOfAll_ = 0;            // of all sequences
    int rowsAtOnce_ = 0;           // rows of tiles whose weights are in memory at the same time
    int capacity_ = 0, tiles_ = 0; // of a list; tiles of the longest sequence
    int pieces_ = 0;               // of 16 tokens, of the longest sequence
    std::vector<Row> rows_;        // of the forward

    PerLayer<Layer> layers_;
    float2* weights_ = nullptr;                               // [rowsAtOnce_, queryHeads, rowTokens_, pieces_]
    std::int64_t* headFirst_ = nullptr;                       // [sequence*queryHeads] of the query head's KV head
    const std::int64_t* kvHeadFirst_ = nullptr;               // [sequence*kvHeads]
    std::uint32_t *united_ = nullptr, *unitedHost_ = nullptr; // [layers, sequences, kvHeads, words of a sequence]
    float *densities_ = nullptr, *densitiesHost_ = nullptr;   // [layers, sequences, queryHeads, tiles of a sequence]
};

} // namespace kvscope
