#include "kernels/cuda/attention.h"

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kTile = 32;  // tokens a warp takes at once
constexpr int kHeads = 16; // query heads of a tensor-core tile

/// Running softmax of the 16 x kDim tile a warp holds: lane l has heads l/4 and l/4 + 8.
template <int kDim> struct Accumulator {
    float out[kDim / 8][4];
    float maximum[2], sum[2];
    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[i][e] = 0;
        maximum[0] = maximum[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }
};

/// One warp, 32 tokens, 16 query heads. Token t of the tile belongs to lane quad t/8: lane l loads, as key rows, tokens
/// 8*(l/4/2) + 2j + (l/4)%2 for its four column tiles j, so that the logits a lane ends up with, heads l/4 and l/4 + 8
/// at tokens 8*(l%4) .. +7, are exactly the probabilities it must feed back with its 16-byte pieces of the values.
template <int kDim>
__device__ inline void attendTile(const DecodeAttentionArgs& a, const Bf16* headBlocks, const float* headBias,
                                  const std::int32_t* blockIds, const std::int32_t* slots, int first, int entries,
                                  int position, const std::uint32_t (&q)[kDim / 32][2][4], Accumulator<kDim>& acc) {
    const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
    const int bs = a.shape.blockSize;
    constexpr int kChunks = kDim / 32; // 64-byte pieces of a key row
    const auto entryOf = [&](int token) { return min(token / bs, entries - 1); };
    const auto blockAt = [&](int entry) {
        return headBlocks + std::size_t(slots != nullptr      ? slots[entry]
                                        : blockIds != nullptr ? blockIds[entry]
                                                              : entry) *
                                blockElements(bs, kDim);
    };
    uint4 k[4][kChunks];
    {
        const int group = first + 8 * (row / 2); // these 8 tokens share a block
        const Bf16* keys = blockAt(entryOf(group)) + std::size_t(group % bs) * kDim;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int c = 0; c < kChunks; ++c) k[j][c] = loadOnce(keys + (2 * j + row % 2) * kDim + c * 32 + quad * 8);
    }
    const int mine = first + 8 * quad; // the 8 tokens this lane has logits and value pieces of
    const int entry = entryOf(mine);
    const int id = blockIds != nullptr ? blockIds[entry] : entry;
    const int tokenId = id * bs + mine % bs; // position of the first of the 8
    const bool listed = mine / bs < entries;
    uint4 v[kDim / 8];
    {
        const Bf16* values = blockAt(entry) + std::size_t(bs) * kDim + mine % bs;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) v[i] = loadOnce(values + std::size_t(i * 8 + row) * bs);
    }
    float logits[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], k[j][c].x, k[j][c].y);
            mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], k[j][c].z, k[j][c].w);
        }
    // logits[j][e]: head row (+8 for e >= 2), token mine + 2j + e%2
    float maximum[2] = {acc.maximum[0], acc.maximum[1]};
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int token = tokenId + 2 * j + e;
            const bool valid = listed && token <= position;
            const float bias = headBias != nullptr && valid ? a.biasScale * headBias[token] : 0.f;
            logits[j][e] = valid ? logits[j][e] * a.scale + bias : -INFINITY;
            logits[j][e + 2] = valid ? logits[j][e + 2] * a.scale + bias : -INFINITY;
            maximum[0] = fmaxf(maximum[0], logits[j][e]);
            maximum[1] = fmaxf(maximum[1], logits[j][e + 2]);
        }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], 1));
        maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], 2));
        const float reference = maximum[h] == -INFINITY ? 0.f : maximum[h];
        const float factor = exp2f((acc.maximum[h] - reference) * kLog2e);
        acc.sum[h] *= factor;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) acc.out[i][2 * h] *= factor, acc.out[i][2 * h + 1] *= factor;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float& p = logits[j][2 * h + e];
                p = exp2f((p - reference) * kLog2e);
                acc.sum[h] += p;
            }
        acc.maximum[h] = maximum[h];
    }
    // Value piece words 0, 1 are tokens mine..+3, words 2, 3 tokens +4..+7; so are column tiles 0, 1 and 2, 3.
    std::uint32_t p[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        p[j][0] = packBf16(logits[j][0], logits[j][1]), p[j][1] = packBf16(logits[j][2], logits[j][3]);
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
        mma16816(acc.out[i], p[0][0], p[0][1], p[1][0], p[1][1], v[i].x, v[i].y);
        mma16816(acc.out[i], p[2][0], p[2][1], p[3][0], p[3][1], v[i].z, v[i].w);
    }
}

constexpr int kDecodeWarps = 4;

/// Grid: (splits, kvHeads, rows * head tiles). Warps take tiles of the split in turn and merge through shared memory;
/// the last block of a (row, KV head) merges the splits.
template <int kDim> __global__ void __launch_bounds__(kDecodeWarps* kWarp) decodeKernel(DecodeAttentionArgs a) {
    __shared__ float merged[kDecodeWarps][kHeads][kDim];
    __shared__ float maxima[kDecodeWarps][kHeads], sums[kDecodeWarps][kHeads];
    __shared__ bool last;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, rowInTile = lane / 4, quad = lane % 4;
    const int group = a.shape.queryHeads / a.shape.kvHeads, headTiles = (group + kHeads - 1) / kHeads;
    const int g = blockIdx.y, row = blockIdx.z / headTiles, headTile = blockIdx.z % headTiles;
    const int heads = min(kHeads, group - headTile * kHeads);
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;

    const int sequence = a.oneSequence ? a.sequence : row;
    const int head = sequence * a.shape.kvHeads + g, item = row * a.shape.kvHeads + g;
    const int position = a.position[row];
    const int entries = a.listCount != nullptr ? a.listCount[item] : position / a.shape.blockSize + 1;
    const std::int32_t* blockIds = a.listBlock != nullptr ? a.listBlock + std::size_t(item) * a.capacity : nullptr;
    const std::int32_t* slots = a.listSlot != nullptr ? a.listSlot + std::size_t(item) * a.capacity : nullptr;
    const Bf16* headBlocks = a.blocks + std::size_t(a.headFirst[head]) * blockElements(a.shape.blockSize, kDim);
    const float* headBias = a.tokenBias != nullptr && a.biasScale != 0.f ? a.tokenBias + a.biasFirst[head] : nullptr;

    const Bf16* qRow =
        a.q + (std::size_t(row) * a.shape.queryHeads + std::size_t(g) * group + headTile * kHeads) * kDim;
    std::uint32_t q[kDim / 32][2][4]; // [64-byte piece][instruction][fragment], columns permuted like the keys'
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (rowInTile < heads) low = *reinterpret_cast<const uint4*>(qRow + rowInTile * kDim + c * 32 + quad * 8);
        if (rowInTile + 8 < heads)
            high = *reinterpret_cast<const uint4*>(qRow + (rowInTile + 8) * kDim + c * 32 + quad * 8);
        q[c][0][0] = low.x, q[c][0][1] = high.x, q[c][0][2] = low.y, q[c][0][3] = high.y;
        q[c][1][0] = low.z, q[c][1][1] = high.z, q[c][1][2] = low.w, q[c][1][3] = high.w;
    }
    Accumulator<kDim> acc;
    acc.clear();
    const int tiles = (entries * a.shape.blockSize + kTile - 1) / kTile;
    const int begin = int(std::int64_t(tiles) * blockIdx.x / gridDim.x),
              end = int(std::int64_t(tiles) * (blockIdx.x + 1) / gridDim.x);
    for (int tile = begin + warp; tile < end; tile += kDecodeWarps)
        attendTile<kDim>(a, headBlocks, headBias, blockIds, slots, tile * kTile, entries, position, q, acc);

        // Merge the warps.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        if (quad == 0) maxima[warp][rowInTile + 8 * h] = acc.maximum[h], sums[warp][rowInTile + 8 * h] = acc.sum[h];
    }
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float2*>(&merged[warp][rowInTile + 8 * h][i * 8 + quad * 2]) =
                make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
    __syncthreads();
    const int splits = gridDim.x;
    Bf16* outRow = a.out + (std::size_t(row) * a.shape.queryHeads + std::size_t(g) * group + headTile * kHeads) * kDim;
    // partial: [(row, g, head tile)][split][16 heads][dim + 2]
    const std::size_t cell = (std::size_t(item) * headTiles + headTile) * splits;
    constexpr int kCell = kHeads * (kDim + 2);
    for (int at = threadIdx.x; at < heads * kDim; at += kDecodeWarps * kWarp) {
        const int h = at / kDim, c = at % kDim;
        float maximum = -INFINITY;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) maximum = fmaxf(maximum, maxima[w][h]);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
        float sum = 0, out = 0;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
            const float factor = exp2f((maxima[w][h] - reference) * kLog2e);
            sum += factor * sums[w][h];
            out += factor * merged[w][h][c];
        }
        if (splits == 1) {
            outRow[h * kDim + c] = __float2bfloat16(sum > 0 ? out / sum : 0.f);
        } else {
            float* to = a.partial + (cell + blockIdx.x) * kCell + h * (kDim + 2);
            to[c] = out;
            if (c == 0) to[kDim] = maximum, to[kDim + 1] = sum;
        }
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const std::uint32_t before = atomicAdd(a.arrivals + std::size_t(item) * headTiles + headTile, 1u);
        last = before + 1 == std::uint32_t(splits);
        if (last) a.arrivals[std::size_t(item) * headTiles + headTile] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int at = threadIdx.x; at < heads * (kDim / 2); at += kDecodeWarps * kWarp) {
        const int h = at / (kDim / 2), c = at % (kDim / 2) * 2;
        const float* from = a.partial + cell * kCell + h * (kDim + 2);
        float maximum = -INFINITY, sum = 0;
        float2 out = make_float2(0, 0);
#pragma unroll 4
        for (int s = 0; s < splits; ++s) {
            const float* part = from + std::size_t(s) * kCell;
            const float theirs = __ldcg(part + kDim), weight = __ldcg(part + kDim + 1);
            const float2 value = __ldcg(reinterpret_cast<const float2*>(part + c));
            const float next = fmaxf(maximum, theirs), reference = next == -INFINITY ? 0.f : next;
            const float keep = exp2f((maximum - reference) * kLog2e), add = exp2f((theirs - reference) * kLog2e);
            sum = sum * keep + weight * add;
            out.x = out.x * keep + value.x * add;
            out.y = out.y * keep + value.y * add;
            maximum = next;
        }
        const float inverse = sum > 0 ? 1.f / sum : 0.f;
        *reinterpret_cast<std::uint32_t*>(outRow + h * kDim + c) = packBf16(out.x * inverse, out.y * inverse);
    }
}

// ---- Prompt ---------------------------------------------------------------------------------------------------------

constexpr int kQueryTokens = 128, kKeyTokens = 64, kPrefillWarps = 8;

/// Grid: (query tiles from the last to the first, query heads). 8 warps of 16 query tokens each; keys and values of 64
/// tokens go through shared memory, two stages, in 16-byte pieces swizzled against bank conflicts.
template <int kDim> __global__ void __launch_bounds__(kPrefillWarps* kWarp) prefillKernel(PrefillAttentionArgs a) {
    extern __shared__ uint4 shared[]; // [2 stages][keys: 64 x kDim/8][values: kDim x 8]
    constexpr int kKeyPieces = kKeyTokens * (kDim / 8), kStage = 2 * kKeyPieces;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const int head = blockIdx.y, g = head / (a.shape.queryHeads / a.shape.kvHeads);
    const int tile = gridDim.x - 1 - blockIdx.x; // the longest first
    const int firstToken = tile * kQueryTokens + warp * 16;
    const int bs = a.shape.blockSize;
    letNextKernelStart();
    waitForEarlierKernels();
    const Bf16* blocks = a.blocks + std::size_t(g) * a.headStride;
    const float* bias = a.tokenBias != nullptr && a.biasScale != 0.f ? a.tokenBias + g * a.biasStride : nullptr;

    std::uint32_t q[kDim / 32][2][4];
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        const auto load = [&](int token) {
            return *reinterpret_cast<const uint4*>(a.q + (std::size_t(token) * a.shape.queryHeads + head) * kDim +
                                                   c * 32 + quad * 8);
        };
        if (firstToken + row < a.n) low = load(firstToken + row);
        if (firstToken + row + 8 < a.n) high = load(firstToken + row + 8);
        q[c][0][0] = low.x, q[c][0][1] = high.x, q[c][0][2] = low.y, q[c][0][3] = high.y;
        q[c][1][0] = low.z, q[c][1][1] = high.z, q[c][1][2] = low.w, q[c][1][3] = high.w;
    }
    const int lastToken = min(a.n, (tile + 1) * kQueryTokens) - 1;
    const int keyTiles = (a.firstPosition + lastToken) / kKeyTokens + 1;
    const int knownTokens = a.firstPosition + a.n; // blocks exist up to here
    constexpr int kRow = kDim / 8;
    const auto keyPlace = [](int token, int piece) { return token * kRow + (piece ^ (token >> 1 & 3)); };
    const auto valuePlace = [](int channel, int piece) { return kKeyPieces + channel * 8 + (piece ^ (channel & 7)); };
    const auto copy = [](void* to, const void* from, bool valid) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
                     "l"(from), "r"(valid ? 16 : 0));
    };
    const auto fetch = [&](int keyTile) {
        uint4* stage = shared + keyTile % 2 * kStage;
        for (int at = threadIdx.x; at < kKeyPieces; at += kPrefillWarps * kWarp) {
            const int token = at / kRow, piece = at % kRow, id = keyTile * kKeyTokens + token;
            const bool known = id < knownTokens;
            const int from = known ? id : 0;
            copy(stage + keyPlace(token, piece),
                 blocks + std::size_t(from / bs) * blockElements(bs, kDim) + std::size_t(from % bs) * kDim + piece * 8,
                 known);
        }
        for (int at = threadIdx.x; at < kKeyPieces; at += kPrefillWarps * kWarp) {
            const int channel = at / 8, piece = at % 8, id = keyTile * kKeyTokens + piece * 8;
            const bool known = id < knownTokens; // a piece may reach past the last token: those are masked, and finite
            const int from = known ? id : 0;
            copy(stage + valuePlace(channel, piece),
                 blocks + std::size_t(from / bs) * blockElements(bs, kDim) + std::size_t(bs) * kDim +
                     std::size_t(channel) * bs + from % bs,
                 known);
        }
    };
    Accumulator<kDim> acc;
    acc.clear();
    fetch(0);
    asm volatile("cp.async.commit_group;");
    for (int keyTile = 0; keyTile < keyTiles; ++keyTile) {
        if (keyTile + 1 < keyTiles) fetch(keyTile + 1);
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        const uint4* stage = shared + keyTile % 2 * kStage;
        float logits[8][4] = {};
        // Column tile j of a half: lane row r loads token 8*(r/2) + 2j + r%2 of its 32; see attendTile.
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int token = j / 4 * 32 + 8 * (row / 2) + 2 * (j % 4) + row % 2;
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) {
                const uint4 k = stage[keyPlace(token, c * 4 + quad)];
                mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], k.x, k.y);
                mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], k.z, k.w);
            }
        }
        float maximum[2] = {acc.maximum[0], acc.maximum[1]};
        const int q0 = a.firstPosition + firstToken + row, q1 = q0 + 8;
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int key = keyTile * kKeyTokens + j / 4 * 32 + 8 * quad + 2 * (j % 4) + e;
                const float add = bias != nullptr && key < knownTokens ? a.biasScale * bias[key] : 0.f;
                logits[j][e] = key <= q0 ? logits[j][e] * a.scale + add : -INFINITY;
                logits[j][e + 2] = key <= q1 ? logits[j][e + 2] * a.scale + add : -INFINITY;
                maximum[0] = fmaxf(maximum[0], logits[j][e]);
                maximum[1] = fmaxf(maximum[1], logits[j][e + 2]);
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], 1));
            maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], 2));
            const float reference = maximum[h] == -INFINITY ? 0.f : maximum[h];
            const float factor = exp2f((acc.maximum[h] - reference) * kLog2e);
            acc.sum[h] *= factor;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) acc.out[i][2 * h] *= factor, acc.out[i][2 * h + 1] *= factor;
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& p = logits[j][2 * h + e];
                    p = exp2f((p - reference) * kLog2e);
                    acc.sum[h] += p;
                }
            acc.maximum[h] = maximum[h];
        }
        std::uint32_t p[8][2];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            p[j][0] = packBf16(logits[j][0], logits[j][1]), p[j][1] = packBf16(logits[j][2], logits[j][3]);
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 v = stage[valuePlace(i * 8 + row, half * 4 + quad)];
                const int j = half * 4;
                mma16816(acc.out[i], p[j][0], p[j][1], p[j + 1][0], p[j + 1][1], v.x, v.y);
                mma16816(acc.out[i], p[j + 2][0], p[j + 2][1], p[j + 3][0], p[j + 3][1], v.z, v.w);
            }
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        const int token = firstToken + row + 8 * h;
        if (token >= a.n) continue;
        const float inverse = acc.sum[h] > 0 ? 1.f / acc.sum[h] : 0.f;
        Bf16* out = a.out + (std::size_t(token) * a.shape.queryHeads + head) * kDim;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
            *reinterpret_cast<std::uint32_t*>(out + i * 8 + quad * 2) =
                packBf16(acc.out[i][2 * h] * inverse, acc.out[i][2 * h + 1] * inverse);
    }
}

} // namespace

int attentionSplits(const AttentionShape& shape, int rows, int maxBlocks, int multiprocessors) {
    const int headTiles = (shape.group() + kHeads - 1) / kHeads;
    const int natural = rows * shape.kvHeads * headTiles;
    const int tiles = (maxBlocks * shape.blockSize + kTile - 1) / kTile;
    const int wanted = (multiprocessors * 3 + natural - 1) / natural;
    return std::clamp(wanted, 1, std::max(1, std::min(64, (tiles + kDecodeWarps - 1) / kDecodeWarps)));
}

std::size_t attentionPartialFloats(const AttentionShape& shape, int rows, int splits) {
    const int headTiles = (shape.group() + kHeads - 1) / kHeads;
    return std::size_t(rows) * std::size_t(shape.kvHeads) * std::size_t(headTiles) * std::size_t(splits) * kHeads *
           std::size_t(shape.dim + 2);
}

void decodeAttention(const Launch& how, const DecodeAttentionArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const int headTiles = (args.shape.group() + kHeads - 1) / kHeads;
    const int splits = attentionSplits(args.shape, args.rows, args.maxBlocks, how.multiprocessors);
    const Grid grid{dim3(unsigned(splits), unsigned(args.shape.kvHeads), unsigned(args.rows * headTiles)),
                    dim3(kDecodeWarps * kWarp)};
    if (args.shape.dim == 64)
        launch(how, grid, decodeKernel<64>, "attending", args);
    else
        launch(how, grid, decodeKernel<128>, "attending", args);
}

void prefillAttention(const Launch& how, const PrefillAttentionArgs& args) {
    checkAttentionShape(args.shape);
    if (args.n == 0) return;
    const std::size_t shared = std::size_t(2) * 2 * kKeyTokens * std::size_t(args.shape.dim) * sizeof(Bf16);
    const Grid grid{dim3(unsigned((args.n + kQueryTokens - 1) / kQueryTokens), unsigned(args.shape.queryHeads)),
                    dim3(kPrefillWarps * kWarp), shared};
    if (args.shape.dim == 64) {
        launch(how, grid, prefillKernel<64>, "attending to the prompt", args);
    } else {
        allowShared(prefillKernel<128>, shared, "preparing the prompt's attention");
        launch(how, grid, prefillKernel<128>, "attending to the prompt", args);
    }
}

} // namespace kvscope::cuda
