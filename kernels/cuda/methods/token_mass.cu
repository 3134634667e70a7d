#include "kernels/cuda/methods/token_mass.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRows = 16, kColumns = 8; // tokens and (query, head) pairs of a tensor-core tile
constexpr int kTileTokens = kWarps * kRows;

/// Grid: (tiles of 128 tokens, kvHeads, rows). A warp keeps the keys of 16 tokens as fragments and lets the queries of
/// all heads of the group pass; columns of the product are permuted as in attention_parts.cuh.
template <int kDim> __global__ void __launch_bounds__(kThreads) massKernel(TokenMassArgs a, Divider byGroup) {
    const int g = blockIdx.y, row = blockIdx.z, item = row * a.shape.kvHeads + g, bs = a.shape.blockSize;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, inTile = lane / 4, quad = lane % 4;
    const int group = byGroup.divisor;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int tokens = a.count != nullptr ? a.count[item] : a.maxTokens;
    const int first = int(blockIdx.x) * kTileTokens + warp * kRows;
    if (first >= tokens) return;

    const Bf16* blocks = a.blocks + std::size_t(item) * a.stride * blockElements(bs, kDim);
    const float* biases = a.bias != nullptr && a.biasScale != 0.f ? a.bias + std::size_t(item) * a.biasStride : nullptr;
    int token[2];
    float bias[2];
    const Bf16* keys[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        token[h] = first + inTile + 8 * h;
        const int from = min(token[h], tokens - 1);
        keys[h] = blocks + std::size_t(from / bs) * blockElements(bs, kDim) + std::size_t(from % bs) * kDim;
        bias[h] = biases != nullptr ? a.biasScale * biases[from] : 0.f;
    }
    uint4 low[kDim / 32], high[kDim / 32];
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        low[c] = *reinterpret_cast<const uint4*>(keys[0] + c * 32 + quad * 8);
        high[c] = *reinterpret_cast<const uint4*>(keys[1] + c * 32 + quad * 8);
    }
    const int columns = a.queries * group, heads = a.shape.queryHeads;
    const Bf16* queries = a.q + (std::size_t(row) * a.queries * heads + std::size_t(g) * group) * kDim;
    const float* logSums = a.logSums + std::size_t(row) * a.queries * heads + g * group;
    // Begins with the first query that sees the first of the tokens.
    const int begin = a.firstPosition < 0 ? 0 : max(0, first - a.firstPosition) * group / kColumns * kColumns;
    float sum[2] = {0, 0};
    for (int base = begin; base < columns; base += kColumns) {
        const int mine = min(base + inTile, columns - 1), query = byGroup(mine);
        const Bf16* q = queries + (std::size_t(query) * heads + (mine - query * group)) * kDim + quad * 8;
        float logits[4] = {};
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            const uint4 piece = *reinterpret_cast<const uint4*>(q + c * 32);
            mma16816(logits, low[c].x, high[c].x, low[c].y, high[c].y, piece.x, piece.y);
            mma16816(logits, low[c].z, high[c].z, low[c].w, high[c].w, piece.z, piece.w);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) { // the lane's results: tokens inTile and + 8, columns 2 quad and + 1
            const int column = base + 2 * quad + e;
            if (column >= columns) continue;
            const int of = byGroup(column);
            const float logSum = logSums[std::size_t(of) * heads + (column - of * group)];
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (a.firstPosition < 0 || token[h] <= a.firstPosition + of)
                    sum[h] += exp2f((logits[2 * h + e] * a.scale + bias[h] - logSum) * kLog2e);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if (quad == 0 && token[h] < tokens) a.mass[std::size_t(item) * a.massStride + token[h]] += double(sum[h]);
    }
}

/// Grid: (pieces of a list, lists).
__global__ void __launch_bounds__(kThreads) poolKernel(PoolArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x), half = a.kernel / 2;
    if (i >= a.length) return;
    const double* mass = a.mass + std::size_t(blockIdx.y) * a.massStride;
    float sum = 0, largest = -INFINITY;
    for (int j = max(0, i - half); j <= min(a.length - 1, i + half); ++j) {
        sum += float(mass[j]);
        largest = fmaxf(largest, float(mass[j]));
    }
    a.scores[std::size_t(blockIdx.y) * a.scoreStride + i] = a.average ? sum / float(a.kernel) : largest;
}

} // namespace

void addTokenMass(const Launch& how, const TokenMassArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0 || args.queries == 0 || args.maxTokens == 0) return;
    launch(how,
           {dim3(unsigned((args.maxTokens + kTileTokens - 1) / kTileTokens), unsigned(args.shape.kvHeads),
                 unsigned(args.rows)),
            dim3(kThreads)},
           args.shape.dim == 64 ? massKernel<64> : massKernel<128>, "adding up attention", args,
           Divider(args.shape.group()));
}

void poolMass(const Launch& how, const PoolArgs& args) {
    if (args.lists == 0 || args.length == 0) return;
    launch(how, {dim3(unsigned((args.length + kThreads - 1) / kThreads), unsigned(args.lists)), dim3(kThreads)},
           poolKernel, "pooling votes", args);
}

} // namespace kvscope::cuda
