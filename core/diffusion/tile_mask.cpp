#include "core/diffusion/tile_mask.h"

#include "core/diffusion/locality.h"

#include <algorithm>

namespace kvscope {

void TileMask::begin(int heads, int rows, int prefix, int tile) {
    rows_ = rows, prefix_ = prefix, tile_ = tile, tiles_ = (prefix + tile - 1) / tile;
    keptAt_ = Extents<int, int, int>(heads, rows, tiles_);
    kept_.assign(keptAt_.size(), 0);
}

void TileMask::choose(int head, int row, std::span<const float> attention, int budget) {
    std::vector<std::int32_t> order;
    choosePages(attention, tilesKept(tiles_, budget, prefix_), keptAt_.part(std::span(kept_), head, row), order);
}

void TileMask::chooseOnCanvas(int head, int row, std::span<const float> attention, std::span<const float> generated,
                              double select) {
    std::vector<std::int32_t> order;
    const std::span<std::uint8_t> kept = keptAt_.part(std::span(kept_), head, row);
    choosePages(attention, tilesOfShare(tiles_, select), kept, order);
    const std::span<std::uint8_t> tail = kept.last(generated.size());
    std::fill(tail.begin(), tail.end(), std::uint8_t(0));
    choosePages(generated, tilesOfShare(int(generated.size()), select), tail, order);
}

std::span<const std::uint8_t> TileMask::row(int head, int row) const {
    return keptAt_.part(std::span(kept_), head, row);
}

float TileMask::density(int head, int row) const {
    const auto kept = this->row(head, row);
    int tokens = 0;
    for (int tile = 0; tile < tiles_; ++tile)
        if (kept[std::size_t(tile)] != 0) tokens += std::min(tile_, prefix_ - tile * tile_);
    return float(double(tokens) / prefix_);
}

} // namespace kvscope
