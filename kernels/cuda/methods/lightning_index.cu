#include "kernels/cuda/methods/lightning_index.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/token/rotation.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

__device__ inline int sequenceOf(const IndexedTokens& tokens, int i) {
    return tokens.oneSequence ? tokens.sequence : i;
}

/// A warp per head of a token; the head behind the queries' is the key.
__global__ void __launch_bounds__(kThreads) placeKernel(LightningPlaceArgs a) {
    letNextKernelStart();
    const int lane = threadIdx.x % kWarp, item = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
    const int queries = a.query != nullptr ? a.index.heads : 0, dim = a.index.dim;
    if (item >= a.tokens.n * (queries + 1)) return;
    const int token = item / (queries + 1), head = item % (queries + 1);
    const int sequence = sequenceOf(a.tokens, token);
    waitForEarlierKernels();
    if (a.tokens.active != nullptr && a.tokens.active[token] == 0) return;
    const int position = a.tokens.position[token];
    const bool isKey = head == queries;
    const std::size_t query = (std::size_t(token) * a.index.heads + head) * dim;
    const float* const from = isKey ? a.key + std::size_t(token) * dim : a.query + query;
    Bf16* const to =
        isKey ? a.index.keys + std::size_t(a.index.tokenFirst[sequence] + position) * dim : a.queries + query;
    float mean = 0, inverse = 1;
    if (isKey) {
        for (int c = lane; c < dim; c += kWarp) mean += from[c];
        mean = warpSum(mean) / float(dim);
        float squares = 0;
        for (int c = lane; c < dim; c += kWarp) squares += (from[c] - mean) * (from[c] - mean);
        inverse = rsqrtf(warpSum(squares) / float(dim) + a.eps);
    }
    const auto normed = [&](int c) {
        return isKey ? (from[c] - mean) * inverse * a.keyNorm[c] + a.keyShift[c] : from[c];
    };
    const int half = a.rotated / 2;
    const std::size_t angles = std::size_t(a.ropeFirst[sequence] + position) * a.angles;
    for (int c = lane; c < half; c += kWarp) {
        const Pair pair(a.interleaved, c, half);
        const float cos = a.cos[angles + c], sin = a.sin[angles + c], low = normed(pair.low), high = normed(pair.high);
        to[pair.low] = __float2bfloat16(low * cos - high * sin);
        to[pair.high] = __float2bfloat16(high * cos + low * sin);
    }
    for (int c = a.rotated + lane; c < dim; c += kWarp) to[c] = __float2bfloat16(normed(c));
}

constexpr int kTileTokens = 16 * kWarps; // keys that a thread block multiplies at once; a warp takes 16
constexpr int kTogether = 8;             // tiles of 8 heads that a warp multiplies with its keys at once

/// Elements from one query head to the next in shared memory: 16 banks further, so that the two heads that eight lanes
/// read lie in different banks.
__host__ __device__ constexpr int queryStride(int dim) { return dim % 64 == 0 ? dim + 32 : dim; }
__host__ __device__ constexpr int headTilesOf(int heads) { return (heads + 7) / 8; }

/// Grid: (parts of the keys, tokens). Shared memory: the token's queries, then what their heads weigh. Rows of the
/// products are keys, columns are heads. Channels are permuted as in linear_tiles.cu: a 16-byte piece of 8 channels is
/// the fragments of two instructions.
__global__ void __launch_bounds__(kThreads) scoreKernel(LightningScoreArgs a) {
    extern __shared__ __align__(16) unsigned char room[];
    letNextKernelStart();
    const int heads = a.index.heads, dim = a.index.dim, tiles = headTilesOf(heads), stride = queryStride(dim),
              token = blockIdx.y, lane = threadIdx.x % kWarp, row8 = lane / 4, quad = lane % 4;
    Bf16* const queries = reinterpret_cast<Bf16*>(room);
    float* const weights = reinterpret_cast<float*>(queries + std::size_t(tiles) * 8 * stride);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.tokens.active != nullptr && a.tokens.active[token] == 0) return;
    const int position = a.tokens.position[token], end = position + 1;
    if (int(blockIdx.x) * kTileTokens >= end) return;
    const int pieces = dim / 8; // of 16 bytes
    for (int at = threadIdx.x; at < tiles * 8 * pieces; at += kThreads) {
        const int head = at / pieces, piece = at % pieces;
        const Bf16* const from = a.queries + (std::size_t(token) * heads + head) * dim + piece * 8;
        *reinterpret_cast<uint4*>(queries + head * stride + piece * 8) =
            head < heads ? loadOnce(from) : make_uint4(0, 0, 0, 0);
    }
    for (int head = threadIdx.x; head < tiles * 8; head += kThreads)
        weights[head] = head < heads ? a.weights[std::size_t(token) * heads + head] * a.scale : 0.f;
    __syncthreads();

    const Bf16* const keys = a.index.keys + std::size_t(a.index.tokenFirst[sequenceOf(a.tokens, token)]) * dim;
    float* const scores = a.scores + std::size_t(token) * a.stride;
    for (int tile = blockIdx.x; tile * kTileTokens < end; tile += int(gridDim.x)) {
        const int first = tile * kTileTokens + int(threadIdx.x) / kWarp * 16, low = first + row8, high = low + 8;
        if (first >= end) break; // all tiles behind it lie behind the token too
        // Keys behind the token are not there yet.
        const Bf16* const lowKey = keys + std::size_t(min(low, position)) * dim + quad * 8;
        const Bf16* const highKey = keys + std::size_t(min(high, position)) * dim + quad * 8;
        float lowSum = 0, highSum = 0;
        for (int group = 0; group < tiles; group += kTogether) {
            float c[kTogether][4] = {};
#pragma unroll 4
            for (int step = 0; step < dim / 32; ++step) {
                const uint4 p = loadOnce(lowKey + step * 32), r = loadOnce(highKey + step * 32);
#pragma unroll
                for (int j = 0; j < kTogether; ++j) {
                    if (group + j >= tiles) continue;
                    const uint4 x = *reinterpret_cast<const uint4*>(queries + ((group + j) * 8 + row8) * stride +
                                                                    step * 32 + quad * 8);
                    mma16816(c[j], p.x, r.x, p.y, r.y, x.x, x.y);
                    mma16816(c[j], p.z, r.z, p.w, r.w, x.z, x.w);
                }
            }
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                if (group + j >= tiles) continue;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float weight = weights[(group + j) * 8 + quad * 2 + e];
                    lowSum = fmaf(weight, fmaxf(c[j][e], 0.f), lowSum);
                    highSum = fmaf(weight, fmaxf(c[j][2 + e], 0.f), highSum);
                }
            }
        }
#pragma unroll
        for (int apart = 2; apart > 0; apart /= 2) {
            lowSum += __shfl_xor_sync(0xffffffffu, lowSum, apart);
            highSum += __shfl_xor_sync(0xffffffffu, highSum, apart);
        }
        if (quad == 0 && low < end) scores[low] = lowSum;
        if (quad == 0 && high < end) scores[high] = highSum;
    }
}

} // namespace

void placeInLightningIndex(const Launch& how, const LightningPlaceArgs& args) {
    if (args.tokens.n == 0) return;
    const int items = args.tokens.n * ((args.query != nullptr ? args.index.heads : 0) + 1);
    launch(how, {dim3(unsigned((items + kWarps - 1) / kWarps)), dim3(kThreads)}, placeKernel,
           "placing keys of the lightning indexer", args);
}

void scoreTokensByIndex(const Launch& how, const LightningScoreArgs& args) {
    if (args.tokens.n == 0 || args.maxTokens == 0) return;
    constexpr int kBlocks = 8; // of a multiprocessor, over which the keys of few tokens are spread
    const int tiles = (args.maxTokens + kTileTokens - 1) / kTileTokens,
              parts = (how.multiprocessors * kBlocks + args.tokens.n - 1) / args.tokens.n;
    const std::size_t heads = std::size_t(headTilesOf(args.index.heads)) * 8,
                      shared = heads * (std::size_t(queryStride(args.index.dim)) * sizeof(Bf16) + sizeof(float));
    launch(how, {dim3(unsigned(std::clamp(parts, 1, tiles)), unsigned(args.tokens.n)), dim3(kThreads), shared},
           scoreKernel, "scoring tokens by the indexer", args);
}

} // namespace kvscope::cuda
