// How a batch lies in an engine's arrays: where each sequence's blocks, windows and tokens begin, and the sizes that
// the engine's scratch memory must hold. This file only computes; it takes no GPU memory.
#pragma once

#include "base/ids.h"
#include "base/indexed.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/model/model_config.h"
#include "kernels/cuda/attention/attention.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// How many of a step's rows are in the first half, where one half computes while blocks of the other travel.
constexpr int firstHalf(int rows) { return (rows + 1) / 2; }

struct BatchLayout {
    static constexpr int kPieceTokens = 2048;      // prompt tokens projected together
    static constexpr int kSparsePrefillRows = 256; // query tokens selected and attended together

    BatchLayout(const ModelConfig& config, const CudaEngineOptions& options);

    /// Heads of all sequences.
    Elements heads() const { return {rows, kvHeads}; }
    /// A sequence's first head.
    int headOf(RowId sequence) const { return int(sequence) * kvHeads; }
    /// Elements between the first blocks of two neighbouring heads of a sequence.
    std::int64_t headStride(RowId sequence) const {
        return std::int64_t(blocks[sequence]) * std::int64_t(blockElements);
    }
    /// Index of the first element of a sequence's blocks in a layer's store.
    std::size_t firstElement(RowId sequence) const { return Elements(blockFirst[headOf(sequence)], blockElements); }
    /// Most blocks that a query of a layer reaches.
    int blocksInSight(LayerId layer) const { return sight_[layer]; }
    /// Floats of partial results that attention may need.
    std::size_t partialFloats(const cuda::Launch& launch) const;

    int rows = 0;     // of a step; row = sequence
    int firstRow = 0; // the batch's row that is row 0 of this layout, see HalfRows
    int kvHeads = 0, dim = 0;
    cuda::AttentionShape shape;
    std::size_t blockElements = 0; // of one KV block of one head
    int maxBlocks = 0;             // most blocks of any sequence
    int maxUnits = 0;              // most units of any sequence, see SelectionSpec::unitTokens
    int capacity = 0;              // of the lists of chosen blocks
    int pieceTokens = 0;           // most prompt tokens or rows projected together
    int selectRows = 0;            // most rows that choose blocks together
    PerRow<int> blocks;            // most blocks of each sequence
    Numbered<std::int64_t> blockFirst, windowFirst, tokenFirst; // [sequence*kvHeads]
    std::int64_t blocksTotal = 0, windowsTotal = 0, tokensTotal = 0;

private:
    PerLayer<int> sight_;
};

} // namespace kvscope
