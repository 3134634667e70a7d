// Stages stage1 and pooling of a denoising forward that chooses for the block's forwards after it: how much of their
// attention the tokens of a block give to each tile of the prefix, and the best tiles: of every query head for every
// row of tiles of the block (SparseD's masks), or of every KV head (the query-agnostic share of LoSA's pages). A tile
// of keys is a KV block; a row of tiles has as many tokens.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct TileMaskArgs {
    BlockRows rows;                        // those with kChoosesOnce choose, BlockRow::kept tiles each
    const __nv_bfloat16* q = nullptr;      // [rows*block, queryHeads*dim]
    const __nv_bfloat16* blocks = nullptr; // of the layer
    float scale = 1;                       // of the products of queries and keys
    int maxTiles = 0;                      // most of a prefix, an incomplete one included
    int capacity = 0;                      // of a list
    float2* weights = nullptr; // [rows, queryHeads, block, pieces()] of 16 tokens: the largest logit, and the sum of
                               // the exponentials of the distances from it
    std::int32_t* tiles = nullptr;   // [rows, queryHeads, tileRows(), capacity] out: what each row keeps, ascending
    std::int32_t* count = nullptr;   // [rows, queryHeads] out: tiles of each of these lists
    std::uint32_t* united = nullptr; // [rows, kvHeads, wordsOf()] out: what any query head of the group keeps, as bits
    float* densities = nullptr;      // [rows, queryHeads, tileRows()] out: tokens of the tiles / prefix; or null
    std::uint64_t* scoreMark = nullptr;
    std::uint64_t* chooseMark = nullptr;

    int pieces() const { return maxTiles * (rows.shape.blockSize / 16); }
    int tileRows() const { return (rows.block + rows.shape.blockSize - 1) / rows.shape.blockSize; }
    int wordsOf() const { return (maxTiles + 31) / 32; }
};

/// @throws Error(Unsupported): a thread block's shared memory is too small to choose among so many tiles
void checkTileMask(const Launch& launch, int maxTiles);

/// Fills `weights`, and clears `united`, of the rows that choose.
void weighTiles(const Launch& launch, const TileMaskArgs& args);
/// Chooses, for every query head and row of tiles, the tiles that get most attention, added up over the row's tokens;
/// of equal ones the lower.
void chooseTiles(const Launch& launch, const TileMaskArgs& args);
/// Chooses, for every KV head, the complete tiles that get most attention, added up over all tokens and the query heads
/// of the KV head. Of the results only `united` is written.
void chooseTilesOfGroups(const Launch& launch, const TileMaskArgs& args);

} // namespace kvscope::cuda
