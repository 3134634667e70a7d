// Stages stage1 and pooling of SparseD's forward that makes the masks of a canvas: how much of their attention the
// tokens of a row of tiles give to each tile of prompt and canvas, and the tiles that every query head keeps.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Some rows of tiles of one sequence. A tile of keys is a KV block; a row of tiles has as many tokens, which several
/// neighbouring `rows` of equal length share.
struct CanvasTileArgs {
    // Of the sequence, each `block` tokens from `first` on; `block` divides a tile. BlockRow::keys: tokens of prompt
    // and canvas.
    BlockRows rows;
    const __nv_bfloat16* q = nullptr;      // [rows*block, queryHeads*dim]
    const __nv_bfloat16* blocks = nullptr; // of the layer
    float scale = 1;                       // of the products of queries and keys
    int tokens = 0;                        // of prompt and canvas
    int firstTileRow = 0;                  // number of the first row of tiles that is chosen for
    int generated = 0;                     // the first tile that holds no token of the prompt, or the last tile
    int kept = 0, keptGenerated = 0;       // tiles that a row keeps: of all; of the generated ones among themselves
    int capacity = 0;                      // of a list
    float2* weights = nullptr; // [rows, queryHeads, block, pieces()] of 16 tokens: the largest logit, and the sum of
                               // the exponentials of the distances from it
    std::int32_t* tiles = nullptr;   // [rows, queryHeads, capacity] out: what each row keeps, ascending
    std::int32_t* count = nullptr;   // [rows, queryHeads] out
    std::uint32_t* united = nullptr; // [kvHeads, wordsOf()] what any query head of the group keeps is added, as bits
    float* densities = nullptr; // [queryHeads, tilesOfAll()] out, of the rows of tiles: tokens of the tiles / tokens
    std::uint64_t* scoreMark = nullptr;
    std::uint64_t* chooseMark = nullptr;

    int tileTokens() const { return rows.shape.blockSize; }
    int tilesOfAll() const { return (tokens + tileTokens() - 1) / tileTokens(); }
    int rowsOfTile() const { return tileTokens() / rows.block; }
    int pieces() const { return (tokens + 15) / 16; }
    int wordsOf() const { return (tilesOfAll() + 31) / 32; }
};

/// @throws Error(Unsupported): a thread block's shared memory is too small to choose among so many tiles
void checkCanvasTiles(const Launch& launch, int maxTiles);

/// Fills `weights`.
void weighCanvasTiles(const Launch& launch, const CanvasTileArgs& args);
/// Chooses the tiles of every query head for every row of tiles. Of the tiles before `generated` those are kept that
/// are among the `kept` best of all by a softmax over all keys, added up over the row's tokens; of the generated ones
/// the `keptGenerated` best by a softmax over the keys of these. Equal ones: the lower tile.
void chooseCanvasTiles(const Launch& launch, const CanvasTileArgs& args);

} // namespace kvscope::cuda
