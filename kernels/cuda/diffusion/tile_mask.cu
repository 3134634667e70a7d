#include "kernels/cuda/diffusion/tile_mask.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"
#include "kernels/cuda/diffusion/ranked_pages.cuh"
#include "kernels/cuda/diffusion/tile_weights.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Grid (8 pieces, kvHeads, rows). A warp multiplies all queries of the block with the keys of one piece.
template <int kDim> __global__ void __launch_bounds__(kThreads) weighKernel(TileMaskArgs a, int pieces, int words) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.scoreMark);
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z), group = shape.queryHeads / shape.kvHeads,
              bs = shape.blockSize, block = a.rows.block;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kChoosesOnce)) return;
    if (blockIdx.x == 0)
        for (int w = int(threadIdx.x); w < words; w += kThreads) a.united[(row * shape.kvHeads + g) * words + w] = 0;
    const int piece = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp, first = piece * kPiece,
              tokens = min(kPiece, of.first - first);
    if (tokens <= 0) return;
    const Bf16* const keys =
        a.blocks +
        (std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g]) + std::size_t(first / bs)) *
            blockElements(bs, kDim) +
        std::size_t(first % bs) * kDim;
    const auto headOf = [&](int i) { return std::size_t(g * group + i % group); };
    const auto queryOf = [&](int i) {
        return a.q + (std::size_t(row * block + i / group) * shape.queryHeads + headOf(i)) * kDim;
    };
    weighPiece<kDim>(keys, tokens, block * group, a.scale, queryOf, [&](int i, float2 weight) {
        const std::size_t token =
            (std::size_t(row) * shape.queryHeads + headOf(i)) * std::size_t(block) + std::size_t(i / group);
        a.weights[token * std::size_t(pieces) + std::size_t(piece)] = weight;
    });
}

/// The largest logit of each of a row's tokens, and one over the sum of its exponentials, in shared memory.
struct RowSums {
    float most[kMostDenoised], inverse[kMostDenoised];
};

/// A warp takes every eighth token. All threads of the thread block call this; a barrier follows.
__device__ inline void sumRow(const float2* weights, int tokens, int pieces, int used, RowSums& sums) {
    for (int token = int(threadIdx.x) / kWarp; token < tokens; token += kWarps) {
        const float2 softmax = softmaxOf(weights + std::size_t(token) * std::size_t(pieces), 0, used);
        if (threadIdx.x % kWarp == 0) sums.most[token] = softmax.x, sums.inverse[token] = softmax.y;
    }
    __syncthreads();
}

/// What the tokens give to one tile, the pieces [begin, end), added up.
__device__ inline float attentionTo(const float2* weights, int tokens, int pieces, int begin, int end,
                                    const RowSums& sums) {
    float attention = 0;
    for (int token = 0; token < tokens; ++token)
        for (int i = begin; i < end; ++i) {
            const float2 weight = weights[std::size_t(token) * std::size_t(pieces) + std::size_t(i)];
            attention += weight.y * exp2f((weight.x - sums.most[token]) * kLog2e) * sums.inverse[token];
        }
    return attention;
}

/// Grid (kvHeads, rows): a thread block chooses the tiles of one KV head. A thread adds up the tiles that it ranks.
__global__ void __launch_bounds__(kThreads) chooseOfGroupKernel(TileMaskArgs a, int pieces, int words) {
    extern __shared__ std::uint32_t keys[]; // [tiles] first their attention, as float
    __shared__ BlockCounter<kWarps>::Shared room;
    __shared__ RowSums sums;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.chooseMark);
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.x), row = int(blockIdx.y), group = shape.queryHeads / shape.kvHeads,
              block = a.rows.block, ofTile = shape.blockSize / kPiece;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kChoosesOnce)) return;
    const int tiles = of.first / shape.blockSize, used = (of.first + kPiece - 1) / kPiece;
    for (int tile = int(threadIdx.x); tile < tiles; tile += kThreads) keys[tile] = __float_as_uint(0.f);
    for (int h = 0; h < group; ++h) {
        const float2* const weights =
            a.weights + std::size_t(row * shape.queryHeads + g * group + h) * std::size_t(block) * pieces;
        __syncthreads(); // the sums of the head before have been read
        sumRow(weights, block, pieces, used, sums);
        for (int tile = int(threadIdx.x); tile < tiles; tile += kThreads)
            keys[tile] = __float_as_uint(__uint_as_float(keys[tile]) +
                                         attentionTo(weights, block, pieces, tile * ofTile, (tile + 1) * ofTile, sums));
    }
    for (int tile = int(threadIdx.x); tile < tiles; tile += kThreads)
        keys[tile] = rankingKey(__uint_as_float(keys[tile]));
    __syncthreads();
    BlockCounter<kWarps> counter(room);
    std::uint32_t* const united = a.united + std::size_t(row * shape.kvHeads + g) * words;
    takeLargest(keys, tiles, of.kept, counter, [&](int i) { atomicOr(united + i / 32, 1u << (i % 32)); });
}

/// Grid (rows of tiles, queryHeads, rows): a thread block chooses the tiles of one row of the mask.
__global__ void __launch_bounds__(kThreads) chooseKernel(TileMaskArgs a, int pieces, int words, int tileRows) {
    extern __shared__ std::uint32_t keys[]; // [tiles], then [words] what is kept, as bits
    __shared__ BlockCounter<kWarps>::Shared room;
    __shared__ RowSums sums;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.chooseMark);
    const AttentionShape& shape = a.rows.shape;
    const int tileRow = int(blockIdx.x), head = int(blockIdx.y), row = int(blockIdx.z), bs = shape.blockSize,
              block = a.rows.block, g = head / (shape.queryHeads / shape.kvHeads), item = row * shape.queryHeads + head;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kChoosesOnce)) return;
    const int first = tileRow * bs, tokens = min(bs, block - first), tiles = (of.first + bs - 1) / bs,
              used = (of.first + kPiece - 1) / kPiece, ofTile = bs / kPiece;
    const float2* const weights = a.weights + (std::size_t(item) * std::size_t(block) + std::size_t(first)) * pieces;
    sumRow(weights, tokens, pieces, used, sums);
    for (int tile = int(threadIdx.x); tile < tiles; tile += kThreads)
        keys[tile] =
            rankingKey(attentionTo(weights, tokens, pieces, tile * ofTile, min(used, (tile + 1) * ofTile), sums));
    std::uint32_t* const bits = keys + a.maxTiles;
    for (int w = int(threadIdx.x); w < words; w += kThreads) bits[w] = 0;
    __syncthreads();
    BlockCounter<kWarps> counter(room);
    takeLargest(keys, tiles, of.kept, counter, [&](int i) { atomicOr(bits + i / 32, 1u << (i % 32)); });
    __syncthreads();
    std::int32_t* const list = a.tiles + (std::size_t(item) * tileRows + std::size_t(tileRow)) * a.capacity;
    std::uint32_t* const united = a.united + std::size_t(row * shape.kvHeads + g) * words;
    const int count = listBits(words, list, counter, [&](int w) {
        if (bits[w] != 0) atomicOr(united + w, bits[w]);
        return bits[w];
    });
    if (threadIdx.x != 0) return;
    a.count[item] = count; // all rows of a head keep as many
    const bool keepsLast = (bits[(tiles - 1) / 32] >> ((tiles - 1) % 32) & 1) != 0;
    const int lacking = keepsLast ? tiles * bs - of.first : 0; // tokens of an incomplete last tile
    if (a.densities != nullptr)
        a.densities[item * tileRows + tileRow] = float(double(count * bs - lacking) / double(of.first));
}

constexpr std::size_t keyBytes(int maxTiles) {
    return (std::size_t(maxTiles) + std::size_t(maxTiles + 31) / 32) * sizeof(std::uint32_t);
}

} // namespace

void checkTileMask(const Launch& how, int maxTiles) { checkRanked(how, maxTiles, keyBytes(maxTiles), "tiles", "tile"); }

void weighTiles(const Launch& how, const TileMaskArgs& args) {
    if (args.rows.rows == 0 || args.maxTiles == 0) return;
    const Grid grid{dim3(unsigned((args.pieces() + kWarps - 1) / kWarps), unsigned(args.rows.shape.kvHeads),
                         unsigned(args.rows.rows)),
                    dim3(kThreads)};
    launch(how, grid, args.rows.shape.dim == 64 ? weighKernel<64> : weighKernel<128>, "weighing tiles", args,
           args.pieces(), args.wordsOf());
}

void chooseTiles(const Launch& how, const TileMaskArgs& args) {
    if (args.rows.rows == 0 || args.maxTiles == 0) return;
    const Grid grid{dim3(unsigned(args.tileRows()), unsigned(args.rows.shape.queryHeads), unsigned(args.rows.rows)),
                    dim3(kThreads), keyBytes(args.maxTiles)};
    raiseShared(chooseKernel, grid.sharedBytes, "preparing the choice of tiles");
    launch(how, grid, chooseKernel, "choosing tiles", args, args.pieces(), args.wordsOf(), args.tileRows());
}

void chooseTilesOfGroups(const Launch& how, const TileMaskArgs& args) {
    if (args.rows.rows == 0 || args.maxTiles == 0) return;
    const Grid grid{dim3(unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)), dim3(kThreads),
                    keyBytes(args.maxTiles)};
    raiseShared(chooseOfGroupKernel, grid.sharedBytes, "preparing the choice of tiles");
    launch(how, grid, chooseOfGroupKernel, "choosing tiles of KV heads", args, args.pieces(), args.wordsOf());
}

} // namespace kvscope::cuda
