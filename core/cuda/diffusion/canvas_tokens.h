// Which tokens of which canvases the kernels of a forward compute: a row of a table for each token, and tiles of
// neighbouring tokens that attend together.
#pragma once

#include "core/cuda/device_copy.h"
#include "core/cuda/device_memory.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_runtime_api.h>
#include <span>

namespace kvscope {

/// An array that the host fills anew for a forward, and its copy on the GPU.
template <class T> class ForwardArray {
public:
    void plan(DeviceArena& arena, Elements most) {
        arena.plan(device_, most, "session state");
        arena.planHost(host_, most, "what the host says of forwards");
    }
    T* host() const { return host_; }
    T* device() const { return device_; }
    /// Copies the first `count` elements, in the stream's order.
    void send(Elements count, cudaStream_t stream) const {
        copyOnStream(device_, host_, count, cudaMemcpyHostToDevice, stream, "copying what a forward computes");
    }

private:
    T *device_ = nullptr, *host_ = nullptr;
};

/// Tokens of several sequences, one sequence behind the other. Where a sequence's tokens do not fill its last tile,
/// places without a token follow them.
class CanvasTokens {
public:
    /// The most places, and the most tiles, that a forward of sequences with so many tokens each can have. tile: of how
    /// many tokens all tiles are; 0: as tileOf has it.
    static std::size_t mostPlaces(std::span<const int> tokens);
    static std::size_t mostTiles(std::span<const int> tokens, int tile = 0);
    /// How many tokens a tile has where the longest sequence computes `longest` tokens: they are cut into as few tiles
    /// as cuda::kMostDenoised tokens in a tile allow, and these tiles are equally long.
    static int tileOf(int longest);

    /// heads: most that attend by lists of their own. tile: see mostTiles
    void plan(DeviceArena& arena, std::span<const int> tokens, int heads, int tile = 0);
    /// Forgets the tokens of the forward before. heads: KV heads, or query heads where these attend by lists of their
    /// own
    void begin(int tile, int heads) { tile_ = tile, heads_ = heads, places_ = tiles_ = fewestKeys_ = 0; }
    /// Adds n tokens from position `first` on, which attend to the positions [0, keys), or, with BlockRow::kSparse
    /// among the flags, to what a list names of them. sequence: row of the tables (first blocks, rotary rows) that
    /// these tokens use. @return the place of the first token
    int add(int sequence, int first, int n, int keys, std::uint32_t flags = 0);
    void send(cudaStream_t stream) const;

    int places() const { return places_; }
    int tiles() const { return tiles_; }
    /// The smallest number of positions to which the tokens of a sequence attend.
    int fewestKeys() const { return fewestKeys_; }
    /// The tokens as rows of one token each, for kernels that place keys and values.
    cuda::BlockRows tokens(const cuda::AttentionShape& shape, const std::int64_t* headFirst) const {
        return {shape, places_, 1, token_.device(), nullptr, headFirst};
    }
    /// The tiles, for attention.
    cuda::BlockRows tiles(const cuda::AttentionShape& shape, const std::int64_t* headFirst) const {
        return {shape, tiles_, tile_, tileRow_.device(), attending_.device(), headFirst};
    }
    /// The tiles [first, first + count), for attention.
    cuda::BlockRows tiles(const cuda::AttentionShape& shape, const std::int64_t* headFirst, int first,
                          int count) const {
        return {shape, count, tile_, tileRow_.device() + first, attending_.device() + first * heads_, headFirst};
    }
    cuda::BlockRow* table() const { return token_.device(); } // [places]

private:
    ForwardArray<cuda::BlockRow> token_, tileRow_; // [places], [tiles]
    ForwardArray<std::uint64_t> attending_;        // [tiles, heads] bit i: the tile has a token i
    int heads_ = 1, tile_ = 1, places_ = 0, tiles_ = 0, fewestKeys_ = 0;
};

} // namespace kvscope
