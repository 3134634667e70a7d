// SparseD's choices for one block in one layer: which tiles of the prefix each query head keeps for each row of tiles
// of the block. No device: numbers in, numbers out.
#pragma once

#include "base/extents.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Tiles of a prefix that a row of the mask keeps: floor(tiles * budget / prefix) + 1, at most all of them.
constexpr int tilesKept(int tiles, int budget, int prefix) {
    const std::int64_t share = std::int64_t(tiles) * budget / prefix + 1;
    return share < tiles ? int(share) : tiles;
}

/// How many of `tiles` tiles a row of a canvas's mask keeps: max(1, floor(tiles * select) + 1), at most all of them.
constexpr int tilesOfShare(int tiles, double select) { return std::clamp(int(tiles * select) + 1, 1, tiles); }
/// The first of a canvas's tiles that holds no token of the prompt, or the last tile.
constexpr int firstGeneratedTile(int prompt, int tokens, int tile) {
    return std::min((prompt + tile - 1) / tile, (tokens + tile - 1) / tile - 1);
}

/// The mask of a block, or of a canvas, in one layer, kept from the forward that makes it to the last one.
class TileMask {
public:
    /// Forgets the mask before. heads: query heads; rows: of tiles of the block; prefix: tokens; tile: tokens. Of a
    /// canvas, rows are all its tiles and the prefix is prompt and canvas.
    void begin(int heads, int rows, int prefix, int tile);
    /// Keeps the best tiles of one row by their attention [tiles]; equal ones: the lower tile. At most one thread per
    /// row and head.
    void choose(int head, int row, std::span<const float> attention, int budget);
    /// Chooses the tiles that one row of a canvas keeps. The last generated.size() tiles hold no token of the prompt:
    /// the best of these by `generated`, the attention that they get among themselves, are kept. Of the tiles before
    /// them those are kept that are among the best of all tiles by `attention`, [tiles]. select: see tilesOfShare.
    /// Equal ones: the lower tile. At most one thread per row and head.
    void chooseOnCanvas(int head, int row, std::span<const float> attention, std::span<const float> generated,
                        double select);

    int rows() const { return rows_; }
    int tiles() const { return tiles_; }
    /// [tiles] nonzero: kept.
    std::span<const std::uint8_t> row(int head, int row) const;
    /// Tokens of the row's tiles / prefix.
    float density(int head, int row) const;

private:
    int rows_ = 0, prefix_ = 0, tile_ = 1, tiles_ = 0;
    Extents<int, int, int> keptAt_; // [heads, rows, tiles]
    std::vector<std::uint8_t> kept_;
};

} // namespace kvscope
