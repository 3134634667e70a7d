// Parts of the kernels that make SparseD's masks: what queries give to pieces of keys, before the softmax is known.
#pragma once

#include "kernels/cuda/device/common.cuh"

namespace kvscope::cuda {

constexpr int kPiece = 16; // tokens of a piece: every tile has a whole number of them

/// The largest of a query's logits over a piece, and the sum of the exponentials of the distances from it. A lane has
/// four of the 16 logits, those of its quad of lanes are the others; `tokens` of the piece count.
__device__ inline float2 weightOf(const float (&first)[4], const float (&second)[4], int half, float scale,
                                  int tokens) {
    const int quad = int(threadIdx.x) % 4;
    float logits[4], most = -INFINITY, sum = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const bool valid = e / 2 * 8 + quad * 2 + e % 2 < tokens;
        logits[e] = valid ? (e < 2 ? first : second)[half * 2 + e % 2] * scale : -INFINITY;
        most = fmaxf(most, logits[e]);
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float reference = most == -INFINITY ? 0.f : most;
#pragma unroll
    for (int e = 0; e < 4; ++e) sum += exp2f((logits[e] - reference) * kLog2e);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return make_float2(most, sum);
}

/// A warp multiplies all queries with the keys of one piece, which it keeps as fragments, 16 queries at a time. The
/// columns of both operands are permuted alike: lane quad q has the channels 8q to 8q + 7 of every 32. keys: [kPiece,
/// kDim], of which `tokens` count; queryOf(i): where query i begins; put(i, weight) gets every weight once.
template <int kDim, class QueryOf, class Put>
__device__ inline void weighPiece(const Bf16* keys, int tokens, int queries, float scale, QueryOf&& queryOf,
                                  Put&& put) {
    constexpr int kChunks = kDim / 32, kQueryTile = 16;
    const int lane = int(threadIdx.x) % kWarp, rowInTile = lane / 4, quad = lane % 4;
    uint4 k[2][kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int j = 0; j < 2; ++j) // a token behind the last one stands for a number that is not used
            k[j][c] = loadOnce(keys + std::size_t(min(j * 8 + rowInTile, tokens - 1)) * kDim + c * 32 + quad * 8);
    for (int begin = 0; begin < queries; begin += kQueryTile) {
        const int query[2] = {begin + rowInTile, begin + rowInTile + 8};
        float logits[2][4] = {};
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            uint4 x = make_uint4(0, 0, 0, 0), y = x;
            if (query[0] < queries) x = *reinterpret_cast<const uint4*>(queryOf(query[0]) + c * 32 + quad * 8);
            if (query[1] < queries) y = *reinterpret_cast<const uint4*>(queryOf(query[1]) + c * 32 + quad * 8);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                mma16816(logits[j], x.x, y.x, x.y, y.y, k[j][c].x, k[j][c].y);
                mma16816(logits[j], x.z, y.z, x.w, y.w, k[j][c].z, k[j][c].w);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 weight = weightOf(logits[0], logits[1], half, scale, tokens);
            if (quad == 0 && query[half] < queries) put(query[half], weight);
        }
    }
}

/// The largest logit of a token over the pieces [begin, end), and one over the sum of its exponentials. All lanes of a
/// warp call this. weights: [pieces]
__device__ inline float2 softmaxOf(const float2* weights, int begin, int end) {
    const int lane = int(threadIdx.x) % kWarp;
    float most = -INFINITY, sum = 0;
    for (int i = begin + lane; i < end; i += kWarp) most = fmaxf(most, weights[i].x);
    most = warpMax(most);
    const float reference = most == -INFINITY ? 0.f : most;
    for (int i = begin + lane; i < end; i += kWarp) sum += weights[i].y * exp2f((weights[i].x - reference) * kLog2e);
    return make_float2(reference, 1.f / warpSum(sum));
}

} // namespace kvscope::cuda
