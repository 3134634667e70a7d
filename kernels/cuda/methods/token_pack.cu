#include "kernels/cuda/methods/token_pack.h"

#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileTokens = 64;              // tokens that a thread block takes
constexpr int kTileStride = kTileTokens + 2; // elements of a channel in shared memory: an odd number of words

/// The values of a tile in shared memory, [channel][token], while they are transposed.
template <int kDim> struct ValueTile {
    Bf16 value[kDim][kTileStride];
    /// 8 channels of a token.
    __device__ void put(int token, int channel, uint4 piece) {
        const std::uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[channel + 2 * i][token] = __ushort_as_bfloat16(std::uint16_t(words[i]));
            value[channel + 2 * i + 1][token] = __ushort_as_bfloat16(std::uint16_t(words[i] >> 16));
        }
    }
    __device__ uint4 channels(int token, int channel) const {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            words[i] = std::uint32_t(__bfloat16_as_ushort(value[channel + 2 * i][token])) |
                       std::uint32_t(__bfloat16_as_ushort(value[channel + 2 * i + 1][token])) << 16;
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    /// 8 tokens of a channel, from an even one.
    __device__ uint4 tokens(int token, int channel) const {
        const auto* words = reinterpret_cast<const std::uint32_t*>(&value[channel][token]);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
    __device__ void putTokens(int token, int channel, uint4 piece) {
        auto* words = reinterpret_cast<std::uint32_t*>(&value[channel][token]);
        words[0] = piece.x, words[1] = piece.y, words[2] = piece.z, words[3] = piece.w;
    }
};

__device__ inline int biasToken(const PackArgs& a, int item, int i) {
    return (a.biasTokens != nullptr ? a.biasTokens : a.tokens)[std::size_t(item) * a.capacity + i];
}

/// Grid: (tiles of 64 tokens, rows*kvHeads).
template <int kDim> __global__ void __launch_bounds__(kThreads) packKernel(PackArgs a) {
    __shared__ ValueTile<kDim> tile;
    __shared__ std::int32_t ids[kTileTokens];
    const int item = blockIdx.y, row = item / a.shape.kvHeads, begin = int(blockIdx.x) * kTileTokens,
              bs = a.shape.blockSize;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int count = a.count[item], whole = (count + bs - 1) / bs * bs;
    if (begin >= whole) return;
    for (int i = threadIdx.x; i < kTileTokens; i += kThreads)
        ids[i] = begin + i < count ? a.tokens[std::size_t(item) * a.capacity + begin + i] : -1;
    __syncthreads();

    const std::int64_t first = a.first != nullptr ? a.first[item] : std::int64_t(item) * a.stride;
    const int newest = a.position != nullptr ? a.position[row] : -1;
    const auto blockOf = [&](int token) {
        const int block = token / bs;
        const int place = a.place != nullptr ? a.place[std::size_t(item) * a.maxBlocks + block] : block;
        return a.blocks + std::size_t(first + place) * blockElements(bs, kDim);
    };
    Bf16* packed = a.packed + std::size_t(item) * a.packedBlocks * blockElements(bs, kDim);
    // Keys, and values where they come from a token store: a thread loads 16 bytes at a time, and asks for all of its
    // pieces before it uses the first.
    constexpr int kPieces = kDim / 8, kTurns = kTileTokens * kPieces / kThreads;
    uint4 keys[kTurns], values[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int at = turn * kThreads + int(threadIdx.x), token = ids[at / kPieces], channel = at % kPieces * 8;
        keys[turn] = values[turn] = make_uint4(0, 0, 0, 0);
        if (token < 0) continue;
        if (token == newest) {
            keys[turn] = loadOnce(a.newKey + std::size_t(item) * kDim + channel);
            values[turn] = loadOnce(a.newValue + std::size_t(item) * kDim + channel);
        } else if (a.store != nullptr) {
            const Bf16* from = a.store + std::size_t(first + token) * tokenElements(kDim) + channel;
            keys[turn] = loadOnce(from);
            values[turn] = loadOnce(from + kDim);
        } else {
            keys[turn] = loadOnce(blockOf(token) + std::size_t(token % bs) * kDim + channel);
        }
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int at = turn * kThreads + int(threadIdx.x), i = begin + at / kPieces, channel = at % kPieces * 8;
        if (i < whole)
            *reinterpret_cast<uint4*>(packed + std::size_t(i / bs) * blockElements(bs, kDim) +
                                      std::size_t(i % bs) * kDim + channel) = keys[turn];
        tile.put(at / kPieces, channel, values[turn]);
    }
    if (a.store == nullptr) { // values of a block lie by channel, so that neighbouring threads take neighbouring tokens
        __syncthreads();
        for (int at = threadIdx.x; at < kTileTokens * kDim; at += kThreads) {
            const int token = ids[at % kTileTokens], channel = at / kTileTokens;
            if (token >= 0 && token != newest)
                tile.value[channel][at % kTileTokens] =
                    blockOf(token)[std::size_t(bs) * kDim + std::size_t(channel) * bs + token % bs];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < kDim * (kTileTokens / 8); at += kThreads) {
        const int channel = at / (kTileTokens / 8), within = at % (kTileTokens / 8) * 8, i = begin + within;
        if (i < whole)
            *reinterpret_cast<uint4*>(packed + std::size_t(i / bs) * blockElements(bs, kDim) + std::size_t(bs) * kDim +
                                      std::size_t(channel) * bs + i % bs) = tile.tokens(within, channel);
    }
    if (a.bias == nullptr || a.packedBias == nullptr) return;
    const float* bias = a.bias + (a.biasFirst != nullptr ? a.biasFirst[item] : std::int64_t(item) * a.biasStride);
    for (int i = threadIdx.x; i < kTileTokens && begin + i < whole; i += kThreads) {
        a.packedBias[std::size_t(item) * a.packedBlocks * bs + begin + i] =
            ids[i] >= 0 ? bias[biasToken(a, item, begin + i)] : 0.f;
    }
}

/// Packs tokens from a token store on GPUs that have bulk copies. A token's key and value are one copy over the link.
template <int kDim> __global__ void __launch_bounds__(kThreads) packStoredKernel(PackArgs a) {
#if __CUDA_ARCH__ >= 900
    constexpr int kRow = 2 * kDim + 8; // elements from one token to the next, which begins in another bank
    __shared__ __align__(128) Bf16 rows[kTileTokens * kRow];
    __shared__ __align__(8) std::uint64_t arrived;
    const int item = blockIdx.y, row = item / a.shape.kvHeads, begin = int(blockIdx.x) * kTileTokens,
              bs = a.shape.blockSize;
    letNextKernelStart();
    if (threadIdx.x == 0) {
        initBarrier(arrived, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int count = a.count[item], whole = (count + bs - 1) / bs * bs;
    if (begin >= whole) return;
    __syncthreads();
    const int here = min(kTileTokens, max(0, count - begin));
    const std::int32_t* ids = a.tokens + std::size_t(item) * a.capacity + begin;
    if (threadIdx.x < kWarp && here > 0) {
        // Earlier kernels have written tokens with ordinary stores, which bulk copies would not see without a fence.
        asm volatile("fence.proxy.async;" ::: "memory");
        if (threadIdx.x == 0) expectBytes(arrived, unsigned(here * kDim * 4));
        __syncwarp();
        const std::int64_t first = a.first != nullptr ? a.first[item] : std::int64_t(item) * a.stride;
        const int newest = a.position != nullptr ? a.position[row] : -1;
        for (int i = threadIdx.x; i < here; i += kWarp) {
            const int token = ids[i];
            if (token == newest) {
                bulkLoad(rows + i * kRow, a.newKey + std::size_t(item) * kDim, kDim * 2, arrived);
                bulkLoad(rows + i * kRow + kDim, a.newValue + std::size_t(item) * kDim, kDim * 2, arrived);
            } else {
                bulkLoad(rows + i * kRow, a.store + std::size_t(first + token) * tokenElements(kDim), kDim * 4,
                         arrived);
            }
        }
    }
    constexpr int kPieces = 2 * kDim / 8;
    for (int at = threadIdx.x; at < (kTileTokens - here) * kPieces; at += kThreads)
        *reinterpret_cast<uint4*>(rows + (here + at / kPieces) * kRow + at % kPieces * 8) = make_uint4(0, 0, 0, 0);
    if (here > 0) waitFor(arrived, 0);
    __syncthreads();
    Bf16* packed = a.packed + std::size_t(item) * a.packedBlocks * blockElements(bs, kDim);
    for (int at = threadIdx.x; at < kTileTokens * (kDim / 8); at += kThreads) {
        const int within = at / (kDim / 8), channel = at % (kDim / 8) * 8, i = begin + within;
        if (i < whole)
            *reinterpret_cast<uint4*>(packed + std::size_t(i / bs) * blockElements(bs, kDim) +
                                      std::size_t(i % bs) * kDim + channel) =
                *reinterpret_cast<const uint4*>(rows + within * kRow + channel);
    }
    for (int at = threadIdx.x; at < kDim * (kTileTokens / 8); at += kThreads) { // neighbouring threads take channels
        const int channel = at % kDim, within = at / kDim * 8, i = begin + within;
        if (i >= whole) continue;
        std::uint32_t words[4];
#pragma unroll
        for (int t = 0; t < 4; ++t)
            words[t] = std::uint32_t(__bfloat16_as_ushort(rows[(within + 2 * t) * kRow + kDim + channel])) |
                       std::uint32_t(__bfloat16_as_ushort(rows[(within + 2 * t + 1) * kRow + kDim + channel])) << 16;
        *reinterpret_cast<uint4*>(packed + std::size_t(i / bs) * blockElements(bs, kDim) + std::size_t(bs) * kDim +
                                  std::size_t(channel) * bs + i % bs) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (a.bias == nullptr || a.packedBias == nullptr) return;
    const float* bias = a.bias + (a.biasFirst != nullptr ? a.biasFirst[item] : std::int64_t(item) * a.biasStride);
    for (int i = threadIdx.x; i < kTileTokens && begin + i < whole; i += kThreads)
        a.packedBias[std::size_t(item) * a.packedBlocks * bs + begin + i] =
            i < here ? bias[biasToken(a, item, begin + i)] : 0.f;
#endif
}

/// Grid: (tiles of 64 tokens, kvHeads).
template <int kDim> __global__ void __launch_bounds__(kThreads) unpackKernel(UnpackArgs a) {
    __shared__ ValueTile<kDim> tile;
    const int g = blockIdx.y, begin = int(blockIdx.x) * kTileTokens, bs = a.shape.blockSize;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* blocks = a.blocks + std::size_t(g) * a.headStride;
    Bf16* store = a.store + std::size_t(g) * a.storeStride * tokenElements(kDim);
    for (int at = threadIdx.x; at < kDim * (kTileTokens / 8); at += kThreads) {
        const int channel = at / (kTileTokens / 8), within = at % (kTileTokens / 8) * 8, token = begin + within;
        if (token < a.tokens) // tokens of the block behind the last one are read, and not stored
            tile.putTokens(within, channel,
                           loadOnce(blocks + std::size_t(token / bs) * blockElements(bs, kDim) +
                                    std::size_t(bs) * kDim + std::size_t(channel) * bs + token % bs));
    }
    __syncthreads();
    constexpr int kPieces = kDim / 8;
    for (int at = threadIdx.x; at < kTileTokens * 2 * kPieces; at += kThreads) {
        const int within = at / (2 * kPieces), piece = at % (2 * kPieces), token = begin + within;
        if (token >= a.tokens) break;
        const int channel = piece % kPieces * 8;
        *reinterpret_cast<uint4*>(store + std::size_t(token) * tokenElements(kDim) + piece * 8) =
            piece < kPieces ? loadOnce(blocks + std::size_t(token / bs) * blockElements(bs, kDim) +
                                       std::size_t(token % bs) * kDim + channel)
                            : tile.channels(within, channel);
    }
}

unsigned tilesOf(int tokens) { return unsigned((tokens + kTileTokens - 1) / kTileTokens); }

} // namespace

void packTokens(const Launch& how, const PackArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const int most = std::min(args.packedBlocks, (args.capacity + args.shape.blockSize - 1) / args.shape.blockSize);
    const Grid grid{dim3(tilesOf(most * args.shape.blockSize), unsigned(args.rows * args.shape.kvHeads)),
                    dim3(kThreads)};
    const bool small = args.shape.dim == 64, bulk = how.clusters && args.store != nullptr;
    const auto kernel = bulk    ? small ? packStoredKernel<64> : packStoredKernel<128>
                           : small ? packKernel<64>
                                : packKernel<128>;
    launch(how, grid, kernel, "packing tokens", args);
}

void unpackPrompt(const Launch& how, const UnpackArgs& args) {
    checkAttentionShape(args.shape);
    if (args.tokens == 0) return;
    launch(how, {dim3(tilesOf(args.tokens), unsigned(args.shape.kvHeads)), dim3(kThreads)},
           args.shape.dim == 64 ? unpackKernel<64> : unpackKernel<128>, "storing the prompt by token", args);
}

} // namespace kvscope::cuda
