// The part of reading a prompt on a GPU that comes before the attention: a piece of the prompt is projected, rotated
// and put into the cache, and its keys enter the block index. The attention differs between PromptReader and
// CudaDenoisePrompts, which call this.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/device_model.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "kernels/cuda/token/token.h"

#include <cstdint>

namespace kvscope {

/// The parts of an engine that place a piece; everything must outlive this object.
struct PiecePlacer {
    const ModelConfig& config;
    const BatchLayout& layout;
    const StepBuffers& buffers;
    const RowTable& rows;
    const cuda::Launch& launch;
    LayerPasses& passes;
    StageRanges& stages;
};

/// Tokens [first, first + n) of a sequence's prompt in one layer. The blocks of head g begin at blocks + g*headStride.
struct PlacedPiece {
    LayerId layer{};
    RowId sequence{};
    int first = 0, n = 0;
    float* x = nullptr; // [n, hidden] the residual stream
    __nv_bfloat16* blocks = nullptr;
    std::int64_t headStride = 0;
    cuda::DeviceIndex index; // of the layer; rotation writes eviction scores to it
    bool indexed = false;    // the keys enter the index
};

/// Where the GPU's timer writes the times at which these parts of the work begin.
struct PieceMarks {
    std::uint64_t *projection = nullptr, *rotation = nullptr, *index = nullptr, *attention = nullptr;
};

/// Places a piece. Afterwards its rotated queries are in StepBuffers::q, and launches belong to the stage `attention`.
inline void placePiece(const PiecePlacer& by, const DeviceLayer& weights, const PlacedPiece& piece,
                       const PieceMarks& marks) {
    by.stages.at(piece.layer, Stage::QkvLinear);
    cuda::stampNow(by.launch, marks.projection);
    by.passes.project(weights, piece.x, piece.n, nullptr);
    const std::size_t angles = Elements(by.rows.rope.first(int(piece.sequence)), tableAngles(by.config));
    cuda::PromptArgs place;
    place.shape = by.layout.shape;
    place.qkv = by.buffers.qkv;
    place.cos = by.rows.ropeCos + angles;
    place.sin = by.rows.ropeSin + angles;
    place.interleaved = by.config.rope.interleaved;
    place.eviction = weights.eviction;
    place.norms = weights.headNorms;
    place.q = by.buffers.q;
    place.index = piece.index;
    place.n = piece.n;
    place.firstPosition = piece.first;
    place.sequence = int(piece.sequence);
    place.blocks = piece.blocks;
    place.headStride = piece.headStride;
    by.stages.at(piece.layer, Stage::Rope);
    cuda::stampNow(by.launch, marks.rotation);
    by.passes.placePrompt(place);
    by.stages.at(piece.layer, Stage::Compression);
    cuda::stampNow(by.launch, marks.index);
    if (piece.indexed) cuda::indexPrompt(by.launch, place);
    by.stages.at(piece.layer, Stage::Attention);
    cuda::stampNow(by.launch, marks.attention);
}

} // namespace kvscope
