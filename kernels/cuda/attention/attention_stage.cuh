// Attention over keys and values that a thread block copies to shared memory 64 tokens at a time: prompts
// (attention.cu) and blocks that are denoised (diffusion/block_attention.cu). Where a stage's pieces lie, the copy of a
// piece, and the two tensor-core products of a warp with a stage.
#pragma once

#include "kernels/cuda/attention/attention_parts.cuh"

namespace kvscope::cuda {

/// Keys and values of 64 tokens in shared memory, in pieces of 16 bytes: keys [token][kDim/8], then values
/// [channel][8]. Eight lanes of a warp read at once: four neighbouring pieces of each of two neighbouring rows. The
/// pieces of a row are permuted by the row's number, so that these eight lie in different banks.
template <int kDim> struct StagePlaces {
    static constexpr int kTokens = 64, kRow = kDim / 8, kPieces = kTokens * kRow, kSize = 2 * kPieces;
    static __host__ __device__ constexpr int key(int token, int piece) { return token * kRow + (piece ^ mixed(token)); }
    static __host__ __device__ constexpr int value(int channel, int piece) {
        return kPieces + channel * 8 + (piece ^ mixed(channel));
    }
    /// The token whose key lane row `row` multiplies as column tile j. The probabilities then leave the product as
    /// operands of the product with the values.
    static __host__ __device__ constexpr int tokenOf(int j, int row) {
        return j / 4 * 32 + 8 * (row / 2) + 2 * (j % 4) + row % 2;
    }
    /// key(tokenOf(j, row), four * 4 + quad), in terms that need few registers while j and four are unrolled.
    static __host__ __device__ constexpr int keyOf(int j, int row, int four, int quad) {
        return tokenOf(j, row) * kRow + four / 2 * 8 + ((four ^ row) & 1) * 4 + (quad ^ (j & 3));
    }
    /// Whether keyOf agrees with key, and no eight lanes that read at once meet a bank twice.
    static constexpr bool meetsNoBankTwice() {
        for (int firstLane = 0; firstLane < kWarp; firstLane += 8)
            for (int tile = 0; tile < 8; ++tile)
                for (int four = 0; four < kRow / 4; ++four) {
                    unsigned keys = 0, values = 0;
                    for (int lane = firstLane; lane < firstLane + 8; ++lane) {
                        const int place = key(tokenOf(tile, lane / 4), four * 4 + lane % 4);
                        if (place != keyOf(tile, lane / 4, four, lane % 4)) return false;
                        keys |= 1u << (place % 8);
                        values |= 1u << (value(tile * 8 + lane / 4, four % 2 * 4 + lane % 4) % 8);
                    }
                    if (keys != 0xff || values != 0xff) return false;
                }
        return true;
    }

private:
    static __host__ __device__ constexpr int mixed(int row) { return (row & 1) << 2 | (row >> 1 & 3); }
};
static_assert(StagePlaces<64>::meetsNoBankTwice() && StagePlaces<128>::meetsNoBankTwice());

/// Begins the copy of 16 bytes to shared memory; where they are not `valid`, nothing is read and zeros are written.
__device__ inline void copyPiece(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(valid ? 16 : 0));
}

/// Adds the products of a warp's 16 queries with the 64 keys of a stage to `logits`. row is lane / 4 and quad lane % 4.
/// logits[j][e] belongs to query `row` (+ 8 for e >= 2) and to the token j / 4 * 32 + 8 * quad + 2 * (j % 4) + e % 2 of
/// the stage.
template <int kDim>
__device__ inline void multiplyKeys(const uint4* stage, int row, int quad, const std::uint32_t (&q)[kDim / 32][2][4],
                                    float (&logits)[8][4]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            const uint4 k = stage[StagePlaces<kDim>::keyOf(j, row, c, quad)];
            mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], k.x, k.y);
            mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], k.z, k.w);
        }
    }
}

/// Adds the products of the probabilities `p` (advanceSoftmax) with the 64 values of a stage to `acc`.
template <int kDim>
__device__ inline void multiplyValues(const uint4* stage, int row, int quad, const std::uint32_t (&p)[8][2],
                                      Accumulator<kDim>& acc) {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 v = stage[StagePlaces<kDim>::value(i * 8 + row, half * 4 + quad)];
            const int j = half * 4;
            mma16816(acc.out[i], p[j][0], p[j][1], p[j + 1][0], p[j + 1][1], v.x, v.y);
            mma16816(acc.out[i], p[j + 2][0], p[j + 2][1], p[j + 3][0], p[j + 3][1], v.z, v.w);
        }
}

/// Writes the attention of one of a lane's two queries, h = 0 or 1, to `out`: the lane's two of every 8 channels.
template <int kDim> __device__ inline void writeOut(Bf16* out, int quad, const Accumulator<kDim>& acc, int h) {
    const float inverse = acc.sum[h] > 0 ? 1.f / acc.sum[h] : 0.f;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
        *reinterpret_cast<std::uint32_t*>(out + i * 8 + quad * 2) =
            packBf16(acc.out[i][2 * h] * inverse, acc.out[i][2 * h + 1] * inverse);
}

} // namespace kvscope::cuda
