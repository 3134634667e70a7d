#include "kernels/cuda/diffusion/canvas_tiles.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/ranked_pages.cuh"
#include "kernels/cuda/diffusion/tile_weights.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostTileTokens = 256;

/// Grid (8 pieces, kvHeads, rows). A warp multiplies all queries of a row with the keys of one piece.
template <int kDim> __global__ void __launch_bounds__(kThreads) weighCanvasKernel(CanvasTileArgs a, int pieces) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.scoreMark);
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z), group = shape.queryHeads / shape.kvHeads,
              bs = shape.blockSize, block = a.rows.block;
    const BlockRow of = a.rows.table[row];
    const int piece = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp, first = piece * kPiece,
              queries = min(block, a.tokens - of.first) * group;
    if (piece >= pieces) return;
    const Bf16* const keys =
        a.blocks +
        (std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g]) + std::size_t(first / bs)) *
            blockElements(bs, kDim) +
        std::size_t(first % bs) * kDim;
    const auto headOf = [&](int i) { return std::size_t(g * group + i % group); };
    const auto queryOf = [&](int i) {
        return a.q + (std::size_t(row * block + i / group) * shape.queryHeads + headOf(i)) * kDim;
    };
    weighPiece<kDim>(keys, min(kPiece, a.tokens - first), queries, a.scale, queryOf, [&](int i, float2 weight) {
        const std::size_t token =
            (std::size_t(row) * shape.queryHeads + headOf(i)) * std::size_t(block) + std::size_t(i / group);
        a.weights[token * std::size_t(pieces) + std::size_t(piece)] = weight;
    });
}

/// Of each token of a row of tiles the largest logit and one over the sum of its exponentials, in shared memory.
struct TileRowSums {
    float2 all[kMostTileTokens], generated[kMostTileTokens]; // over all keys; over those of the generated tiles
};

/// Grid (rows of tiles, queryHeads): a thread block chooses the tiles of one row of the mask.
__global__ void __launch_bounds__(kThreads)
    chooseCanvasKernel(CanvasTileArgs a, int pieces, int words, int tiles, int rowsOfTile) {
    extern __shared__ std::uint32_t keys[]; // [tiles], then [words] what is kept, as bits
    __shared__ BlockCounter<kWarps>::Shared room;
    __shared__ TileRowSums sums;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.chooseMark);
    const AttentionShape& shape = a.rows.shape;
    const int bs = shape.blockSize, block = a.rows.block, heads = shape.queryHeads, head = int(blockIdx.y),
              firstRow = int(blockIdx.x) * rowsOfTile, tileRow = a.firstTileRow + int(blockIdx.x),
              rows = min(rowsOfTile, a.rows.rows - firstRow), tokens = min(bs, a.tokens - tileRow * bs),
              ofTile = bs / kPiece;
    const auto weightsOf = [&](int token) {
        const std::size_t row = std::size_t(firstRow + token / block);
        return a.weights + ((row * heads + head) * std::size_t(block) + std::size_t(token % block)) * pieces;
    };
    for (int token = int(threadIdx.x) / kWarp; token < tokens; token += kWarps) {
        const float2 all = softmaxOf(weightsOf(token), 0, pieces),
                     generated = softmaxOf(weightsOf(token), a.generated * ofTile, pieces);
        if (threadIdx.x % kWarp == 0) sums.all[token] = all, sums.generated[token] = generated;
    }
    __syncthreads();
    const auto keyOf = [&](int tile, const float2* softmax) {
        float attention = 0;
        for (int token = 0; token < tokens; ++token) {
            const float2* const weights = weightsOf(token);
            for (int i = tile * ofTile; i < min(pieces, (tile + 1) * ofTile); ++i)
                attention += weights[i].y * exp2f((weights[i].x - softmax[token].x) * kLog2e) * softmax[token].y;
        }
        return rankingKey(attention);
    };
    std::uint32_t* const bits = keys + tiles;
    for (int tile = int(threadIdx.x); tile < tiles; tile += kThreads) keys[tile] = keyOf(tile, sums.all);
    for (int w = int(threadIdx.x); w < words; w += kThreads) bits[w] = 0;
    __syncthreads();
    BlockCounter<kWarps> counter(room);
    takeLargest(keys, tiles, a.kept, counter, [&](int i) {
        if (i < a.generated) atomicOr(bits + i / 32, 1u << (i % 32));
    });
    __syncthreads(); // all have done with the keys
    const int first = a.generated;
    for (int tile = first + int(threadIdx.x); tile < tiles; tile += kThreads) keys[tile] = keyOf(tile, sums.generated);
    __syncthreads();
    takeLargest(keys + first, tiles - first, a.keptGenerated, counter,
                [&](int i) { atomicOr(bits + (first + i) / 32, 1u << ((first + i) % 32)); });
    __syncthreads();
    std::uint32_t* const united = a.united + std::size_t(head / (heads / shape.kvHeads)) * words;
    int count = 0;
    for (int row = 0; row < rows; ++row) { // all of them attend to the same tiles
        const std::size_t item = std::size_t(firstRow + row) * heads + head;
        count = listBits(words, a.tiles + item * std::size_t(a.capacity), counter, [&](int w) {
            if (row == 0 && bits[w] != 0) atomicOr(united + w, bits[w]);
            return bits[w];
        });
        if (threadIdx.x == 0) a.count[item] = count;
    }
    if (threadIdx.x != 0) return;
    const bool keepsLast = (bits[(tiles - 1) / 32] >> ((tiles - 1) % 32) & 1) != 0;
    const int lacking = keepsLast ? tiles * bs - a.tokens : 0; // tokens of an incomplete last tile
    a.densities[head * tiles + tileRow] = float(double(count * bs - lacking) / double(a.tokens));
}

constexpr std::size_t keyBytes(int maxTiles) {
    return (std::size_t(maxTiles) + std::size_t(maxTiles + 31) / 32) * sizeof(std::uint32_t);
}

} // namespace

void checkCanvasTiles(const Launch& how, int maxTiles) {
    checkRanked(how, maxTiles, keyBytes(maxTiles) + sizeof(TileRowSums), "tiles", "tile");
}

void weighCanvasTiles(const Launch& how, const CanvasTileArgs& args) {
    if (args.rows.rows == 0) return;
    const Grid grid{dim3(unsigned((args.pieces() + kWarps - 1) / kWarps), unsigned(args.rows.shape.kvHeads),
                         unsigned(args.rows.rows)),
                    dim3(kThreads)};
    launch(how, grid, args.rows.shape.dim == 64 ? weighCanvasKernel<64> : weighCanvasKernel<128>,
           "weighing a canvas's tiles", args, args.pieces());
}

void chooseCanvasTiles(const Launch& how, const CanvasTileArgs& args) {
    if (args.rows.rows == 0) return;
    const int rowsOfTile = args.rowsOfTile();
    const Grid grid{
        dim3(unsigned((args.rows.rows + rowsOfTile - 1) / rowsOfTile), unsigned(args.rows.shape.queryHeads)),
        dim3(kThreads), keyBytes(args.tilesOfAll())};
    raiseShared(chooseCanvasKernel, grid.sharedBytes, "preparing the choice of a canvas's tiles");
    launch(how, grid, chooseCanvasKernel, "choosing a canvas's tiles", args, args.pieces(), args.wordsOf(),
           args.tilesOfAll(), rowsOfTile);
}

} // namespace kvscope::cuda
