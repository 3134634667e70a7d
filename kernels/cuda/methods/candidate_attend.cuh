// AsyncTLS: the attention to the chosen places, and the merge of the results of a cluster's thread blocks.
#pragma once

#include "kernels/cuda/methods/candidate_parts.cuh"

namespace kvscope::cuda {

__device__ inline void copyPiece(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}

/// Reads four 8x8 pieces from shared memory, transposed, as fragments. Lane l gives the address of row l % 8 of piece
/// l / 8.
__device__ inline uint4 loadTransposed(const void* row) {
    uint4 pieces;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pieces.x), "=r"(pieces.y), "=r"(pieces.z), "=r"(pieces.w)
                 : "r"(unsigned(__cvta_generic_to_shared(row)))
                 : "memory");
    return pieces;
}

/// Attends to the chosen places. A warp takes 16 places in a turn, copies their keys and values one by one from their
/// blocks to its tile, and waits for no other warp.
template <int kDim>
__device__ void attendPlaces(const DecodeAttentionArgs& a, const DecodePlace& place, const CandidatePart& part,
                             int total, Accumulator<kDim>& acc) {
    constexpr int kRow = kDim + kPadding, kPieces = kDim / 8;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const int values = a.shape.blockSize * kDim; // from a token's key to its value
    const Bf16* blocks = a.blocks + std::size_t(a.headFirst[part.item]) * 2 * values;
    const float* bias =
        a.bias.scores != nullptr && a.bias.scale != 0.f ? a.bias.scores + a.bias.first[part.item] : nullptr;
    Bf16* keyTile = reinterpret_cast<Bf16*>(part.tiles()) + std::size_t(warp) * 2 * kGroupPlaces * kRow;
    Bf16* valueTile = keyTile + kGroupPlaces * kRow;
    std::uint32_t q[kDim / 32][2][4];
    if (warp >= kAttendWarps) return;
    if (warp * kGroupPlaces < total) loadQueries<kDim>(a, place, q);
    for (int first = warp * kGroupPlaces; first < total; first += kAttendWarps * kGroupPlaces) {
        const int here = min(kGroupPlaces, total - first);
        __syncwarp(); // all lanes have read the tile of the turn before
#pragma unroll
        for (int i = lane; i < kGroupPlaces * 2 * kPieces; i += kWarp) { // absent places repeat the last and are masked
            const int at = i / (2 * kPieces), piece = i % kPieces * 8;
            const bool value = i / kPieces % 2 != 0;
            const int mine = part.list()[first + min(at, here - 1)];
            const Bf16* from = blocks + part.offsets()[mine / kGroupPlaces] + mine % kGroupPlaces * kDim + piece;
            copyPiece((value ? valueTile : keyTile) + at * kRow + piece, value ? from + values : from);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        float logits[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) {
                const uint4 k = *reinterpret_cast<const uint4*>(keyTile + (j * 8 + row) * kRow + c * 32 + quad * 8);
                mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], k.x, k.y);
                mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], k.z, k.w);
            }
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = j * 8 + quad * 2 + e;
                float extra = at < here ? 0.f : -INFINITY;
                if (bias != nullptr && at < here) {
                    const int mine = part.list()[first + at];
                    extra = a.bias.scale * bias[part.tokens()[mine / kGroupPlaces] + mine % kGroupPlaces];
                }
                logits[j][e] = logits[j][e] * a.scale + extra;
                logits[j][e + 2] = logits[j][e + 2] * a.scale + extra;
            }
        std::uint32_t p[2][2];
        advanceSoftmax<kDim, 2>(logits, acc, p);
        const Bf16* mine = valueTile + lane % 16 * kRow + lane / 16 * 8;
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) {
            const uint4 v = loadTransposed(mine + i * 16);
            mma16816(acc.out[2 * i], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
            mma16816(acc.out[2 * i + 1], p[0][0], p[0][1], p[1][0], p[1][1], v.z, v.w);
        }
    }
}

/// Merges the warps' results and sends every thread block of the cluster the results of the heads that it merges. Then
/// merges and writes this thread block's heads. A thread block receives at most 16 results of 16 heads.
template <int kDim>
__device__ void mergeCandidates(CandidateShared& s, const DecodeAttentionArgs& a, const DecodePlace& place,
                                const CandidatePart& part, Accumulator<kDim>& acc) {
    constexpr int kRow = kDim + kPadding;
    const auto cluster = thisCluster();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const int heads = place.heads, share = part.plan.byRank(heads + part.ranks - 1);
    float* values = reinterpret_cast<float*>(part.tiles()); // [warps][heads][kRow]
    __syncthreads();                                        // all warps have read their keys and values
#pragma unroll
    for (int h = 0; h < 2 && warp < kAttendWarps; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        if (quad == 0) s.warpMaxima[warp][row + 8 * h] = acc.maximum[h], s.warpSums[warp][row + 8 * h] = acc.sum[h];
        if (row + 8 * h >= heads) continue;
        float* to = values + (std::size_t(warp) * heads + row + 8 * h) * kRow + quad * 2;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
            *reinterpret_cast<float2*>(to + i * 8) = make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < heads * (kDim / 4); at += kCandidateThreads) {
        const int h = at / (kDim / 4), c = at % (kDim / 4) * 4, owner = h / share,
                  slot = part.rank * share + h - owner * share;
        float maximum = -INFINITY, sum = 0;
#pragma unroll
        for (int w = 0; w < kAttendWarps; ++w) maximum = fmaxf(maximum, s.warpMaxima[w][h]);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kAttendWarps; ++w) {
            const float factor = exp2f((s.warpMaxima[w][h] - reference) * kLog2e);
            const float4 value = *reinterpret_cast<const float4*>(values + (std::size_t(w) * heads + h) * kRow + c);
            sum += factor * s.warpSums[w][h];
            out.x += factor * value.x, out.y += factor * value.y, out.z += factor * value.z, out.w += factor * value.w;
        }
        *reinterpret_cast<float4*>(cluster.map_shared_rank(&s.merged[slot][c], owner)) = out;
        if (c == 0) *cluster.map_shared_rank(&s.mergedSums[slot], owner) = make_float2(maximum, sum);
    }
    cluster.sync();
    const int first = part.rank * share, mine = min(share, heads - first);
    for (int at = threadIdx.x; at < mine * (kDim / 2); at += kCandidateThreads) {
        const int h = at / (kDim / 2), c = at % (kDim / 2) * 2;
        float maximum = -INFINITY, sum = 0;
        float2 out = make_float2(0, 0);
        for (int r = 0; r < part.ranks; ++r) maximum = fmaxf(maximum, s.mergedSums[r * share + h].x);
        for (int r = 0; r < part.ranks; ++r) {
            const float2 theirs = s.mergedSums[r * share + h],
                         value = *reinterpret_cast<const float2*>(&s.merged[r * share + h][c]);
            const float factor = exp2f((theirs.x - maximum) * kLog2e); // the maximum is finite: some place was chosen
            sum += factor * theirs.y;
            out.x += factor * value.x, out.y += factor * value.y;
        }
        const std::size_t head = place.firstQueryHead + first + h;
        *reinterpret_cast<std::uint32_t*>(a.out + head * kDim + c) = packBf16(out.x / sum, out.y / sum);
        if (c == 0 && a.logSums != nullptr) a.logSums[head] = maximum + logf(sum);
    }
}

} // namespace kvscope::cuda
