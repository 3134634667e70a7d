// SparseD's scores on the CPU backend: how much of its attention a query gives to each tile of keys.
#pragma once

#include "kernels/kernels.h"

#include <span>
#include <vector>

namespace kvscope {

/// Scaled products of a query [dim] with the keys of tiles, `tile` tokens each: scores [views, tile].
void scoreTiles(const float* query, int dim, float scale, std::span<const KvBlockView> views, int tile,
                std::span<float> scores);

/// The numerators of a softmax over tokens, summed up within each tile. The share of the attention that a tile gets is
/// ofTile / all.
struct TileWeights {
    std::vector<double> ofTile; // of the tiles that the scores cover, the last one perhaps in part
    double all = 0;             // of all tokens, added up one after the other
};
/// The weights of tiles of `tile` tokens from the logits of all tokens.
TileWeights weighTiles(std::span<const float> scores, int tile);

} // namespace kvscope
