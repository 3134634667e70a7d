#include "core/cuda/diffusion/canvas_tokens.h"

#include <algorithm>

namespace kvscope {

using cuda::BlockRow;

namespace {

constexpr int kLeastOfManyTiles = cuda::kMostDenoised / 2 + 1; // tokens of a tile where a sequence has several

int tilesOf(int tokens, int tile) { return (tokens + tile - 1) / tile; }

} // namespace

int CanvasTokens::tileOf(int longest) {
    const int tiles = tilesOf(longest, cuda::kMostDenoised);
    return tiles > 0 ? (longest + tiles - 1) / tiles : 1;
}

std::size_t CanvasTokens::mostPlaces(std::span<const int> tokens) {
    int most = 0;
    for (const int n : tokens) most += n + cuda::kMostDenoised - 1;
    return Elements(most);
}

std::size_t CanvasTokens::mostTiles(std::span<const int> tokens, int tile) {
    int most = 0;
    for (const int n : tokens) most += tilesOf(n, tile > 0 ? tile : kLeastOfManyTiles);
    return Elements(most);
}

void CanvasTokens::plan(DeviceArena& arena, std::span<const int> tokens, int heads, int tile) {
    token_.plan(arena, mostPlaces(tokens));
    tileRow_.plan(arena, mostTiles(tokens, tile));
    attending_.plan(arena, {mostTiles(tokens, tile), heads});
}

int CanvasTokens::add(int sequence, int first, int n, int keys, std::uint32_t flags) {
    const int begin = places_, tiles = tilesOf(n, tile_);
    if (n > 0) fewestKeys_ = places_ == 0 ? keys : std::min(fewestKeys_, keys);
    for (int i = 0; i < tiles * tile_; ++i)
        token_.host()[places_++] = i < n ? BlockRow{sequence, first + i, first + i + 1, BlockRow::kTaken} : BlockRow();
    for (int t = 0; t < tiles; ++t) {
        const int here = std::min(tile_, n - t * tile_);
        tileRow_.host()[tiles_] = {sequence, first + t * tile_, keys, BlockRow::kTaken | flags};
        std::fill_n(attending_.host() + tiles_ * heads_, heads_, ~std::uint64_t(0) >> (64 - here));
        ++tiles_;
    }
    return begin;
}

void CanvasTokens::send(cudaStream_t stream) const {
    if (places_ == 0) return;
    token_.send(places_, stream);
    tileRow_.send(tiles_, stream);
    attending_.send({tiles_, heads_}, stream);
}

} // namespace kvscope
