#include "kernels/cuda/attention/attention_latent.h"

#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kHeads = 16; // query heads of a decode tile

/// Sizes that follow from a key's width.
template <int kDim> struct LatentWidth {
    static constexpr int kValue = latentValueOf(kDim);
    static constexpr int kRow = kDim + 8;    // elements from row to row in shared memory: 8 rows in different banks
    static constexpr int kPieces = kDim / 8; // 16-byte pieces of a key
    static constexpr int kCell = kValue + 2; // a head's partial result: values, maximum, sum
    static constexpr int kWarpValues = kValue / kWarps, kTiles = kWarpValues / 8; // channels of a warp, in tiles of 8
    static_assert(kDim % 32 == 0 && kWarpValues % 16 == 0);
};

/// Four 8x8 matrices; lane l gives the address of row l%8 of matrix l/8.
template <bool kTransposed> __device__ inline void loadMatrices(std::uint32_t (&to)[4], const Bf16* from) {
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(sharedAddress(from))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(sharedAddress(from))
                     : "memory");
}

__device__ inline void copyPiece(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sharedAddress(to)), "l"(from),
                 "r"(valid ? 16 : 0));
}

/// Shared memory for kRowTiles * 16 query rows and two stages of kTokens keys each.
template <int kDim, int kRowTiles, int kTokens> struct LatentShared {
    using Width = LatentWidth<kDim>;
    Bf16 q[kRowTiles * 16][Width::kRow];
    Bf16 keys[2][kTokens][Width::kRow];
    float logits[kRowTiles * 16][kTokens + 4];
    Bf16 p[kRowTiles * 16][kTokens + 8];
    float factor[kRowTiles * 16], maximum[kRowTiles * 16], sum[kRowTiles * 16];
    std::int32_t position[kRowTiles * 16]; // position of each query
    std::int32_t token[2][kTokens];        // position of each key; where there is no key, one behind all queries
};

template <int kDim> using DecodeShared = LatentShared<kDim, 1, 64>;
template <int kDim> using PromptShared = LatentShared<kDim, 4, 32>;
template <int kDim>
constexpr bool kFits = sizeof(DecodeShared<kDim>) <= kLatentSharedBytes &&
                       sizeof(PromptShared<kDim>) <= kLatentSharedBytes;
static_assert(kFits<kLatentDim> && kFits<kSmallLatentDim>);

/// Where the keys lie: ids and places of the listed blocks. Null: block i lies at place i.
struct LatentKeys {
    const Bf16* blocks;
    const std::int32_t *ids, *places;
    int entries, blockSize;
    Divider byBlock;
};

/// Attends with q to the tiles [begin, end) of kTokens keys each. The warps split the channels of the values.
template <int kDim, int kRowTiles, int kTokens>
__device__ void attendLatent(LatentShared<kDim, kRowTiles, kTokens>& shared, const LatentKeys& keys, int begin, int end,
                             float scale, float (&acc)[kRowTiles][LatentWidth<kDim>::kTiles][4]) {
    using Width = LatentWidth<kDim>;
    constexpr int kRows = kRowTiles * 16, kPerRow = kThreads / kRows; // threads that share a row's softmax
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, quad = lane % 4;
    const auto fetch = [&](int tile) {
        const int stage = tile & 1;
        for (int at = threadIdx.x; at < kTokens * Width::kPieces; at += kThreads) {
            const int token = at / Width::kPieces, piece = at % Width::kPieces, index = tile * kTokens + token;
            const int wanted = keys.byBlock(index), entry = min(wanted, keys.entries - 1);
            const int place = keys.places != nullptr ? keys.places[entry] : entry;
            const bool valid = wanted < keys.entries;
            const Bf16* from =
                keys.blocks +
                (std::size_t(place) * keys.blockSize + (valid ? index - wanted * keys.blockSize : 0)) * kDim;
            copyPiece(&shared.keys[stage][token][piece * 8], from + piece * 8, valid);
        }
        if (threadIdx.x < kTokens) {
            const int index = tile * kTokens + int(threadIdx.x), wanted = keys.byBlock(index);
            const int id = keys.ids != nullptr ? keys.ids[min(wanted, keys.entries - 1)] : wanted;
            shared.token[stage][threadIdx.x] =
                wanted < keys.entries ? id * keys.blockSize + index - wanted * keys.blockSize : 0x7fffffff;
        }
    };
    if (threadIdx.x < kRows) shared.maximum[threadIdx.x] = -INFINITY, shared.sum[threadIdx.x] = 0;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < Width::kTiles; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[m][i][e] = 0;
    if (begin < end) fetch(begin);
    asm volatile("cp.async.commit_group;");
    for (int tile = begin; tile < end; ++tile) {
        const int stage = tile & 1;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads(); // the tile has arrived, and all warps have read the other stage
        if (tile + 1 < end) fetch(tile + 1);
        asm volatile("cp.async.commit_group;");

        // Logits: kRowTiles * kTokens/8 tiles of 16 x 8, as many for each warp, all in the same rows.
        constexpr int kColumns = kRowTiles * (kTokens / 8) / kWarps; // column tiles of a warp
        constexpr int kPerRowTile = kTokens / 8 / kColumns;          // warps that share a row tile
        const int m = warp / kPerRowTile, firstColumn = warp % kPerRowTile * kColumns;
        float c[kColumns][4] = {};
        const Bf16* queries = &shared.q[m * 16 + lane % 16][lane / 16 * 8];
        const Bf16* columns = &shared.keys[stage][firstColumn * 8 + lane % 8][lane / 8 * 8];
#pragma unroll 3
        for (int k = 0; k < kDim; k += 32) {
            std::uint32_t a[2][4], b[4];
            loadMatrices<false>(a[0], queries + k);
            loadMatrices<false>(a[1], queries + k + 16);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                loadMatrices<false>(b, columns + j * 8 * Width::kRow + k);
                mma16816(c[j], a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
                mma16816(c[j], a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
            }
        }
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = m * 16 + lane / 4 + e / 2 * 8, column = (firstColumn + j) * 8 + quad * 2 + e % 2;
                shared.logits[row][column] =
                    shared.token[stage][column] <= shared.position[row] ? c[j][e] * (scale * kLog2e) : -INFINITY;
            }
        __syncthreads();

        {
            const int row = threadIdx.x / kPerRow, sub = threadIdx.x % kPerRow;
            const float before = shared.maximum[row];
            float maximum = before;
#pragma unroll
            for (int i = 0; i < kTokens / kPerRow; ++i) maximum = fmaxf(maximum, shared.logits[row][sub + i * kPerRow]);
#pragma unroll
            for (int offset = kPerRow / 2; offset > 0; offset /= 2)
                maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
            const float reference = maximum == -INFINITY ? 0.f : maximum;
            float sum = 0;
#pragma unroll
            for (int i = 0; i < kTokens / kPerRow; ++i) {
                const float p = exp2f(shared.logits[row][sub + i * kPerRow] - reference);
                sum += p;
                shared.p[row][sub + i * kPerRow] = __float2bfloat16(p);
            }
#pragma unroll
            for (int offset = kPerRow / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            __syncwarp(); // all threads of the row have read the row's state
            if (sub == 0) {
                const float factor = exp2f(before - reference);
                shared.factor[row] = factor;
                shared.maximum[row] = maximum;
                shared.sum[row] = shared.sum[row] * factor + sum;
            }
        }
        __syncthreads();

#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
            const float low = shared.factor[r * 16 + lane / 4], high = shared.factor[r * 16 + lane / 4 + 8];
#pragma unroll
            for (int i = 0; i < Width::kTiles; ++i)
                acc[r][i][0] *= low, acc[r][i][1] *= low, acc[r][i][2] *= high, acc[r][i][3] *= high;
        }
#pragma unroll
        for (int k = 0; k < kTokens; k += 16) {
            std::uint32_t a[kRowTiles][4];
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r)
                loadMatrices<false>(a[r], &shared.p[r * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int i = 0; i < Width::kTiles; i += 2) {
                std::uint32_t b[4]; // tokens x channels, transposed while they are read
                loadMatrices<true>(
                    b, &shared.keys[stage][k + lane % 16][warp * Width::kWarpValues + i * 8 + lane / 16 * 8]);
#pragma unroll
                for (int r = 0; r < kRowTiles; ++r) {
                    mma16816(acc[r][i], a[r][0], a[r][1], a[r][2], a[r][3], b[0], b[1]);
                    mma16816(acc[r][i + 1], a[r][0], a[r][1], a[r][2], a[r][3], b[2], b[3]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}

/// Copies the query rows [0, count) to shared memory and fills the other rows with zeros.
template <int kDim, int kRowTiles, int kTokens>
__device__ void loadQueryRows(LatentShared<kDim, kRowTiles, kTokens>& shared, const Bf16* q, int count) {
    constexpr int kPieces = LatentWidth<kDim>::kPieces;
    for (int at = threadIdx.x; at < kRowTiles * 16 * kPieces; at += kThreads) {
        const int row = at / kPieces, piece = at % kPieces;
        *reinterpret_cast<uint4*>(&shared.q[row][piece * 8]) =
            row < count ? reinterpret_cast<const uint4*>(q + std::size_t(row) * kDim)[piece] : make_uint4(0, 0, 0, 0);
    }
}

/// Grid: (splits, 1, rows * head tiles).
template <int kDim>
__global__ void __launch_bounds__(kThreads) latentDecodeKernel(DecodeAttentionArgs a, int headTiles, Divider byBlock) {
    extern __shared__ __align__(128) unsigned char raw[];
    using Width = LatentWidth<kDim>;
    constexpr int kValue = Width::kValue, kCell = Width::kCell;
    auto& shared = *reinterpret_cast<DecodeShared<kDim>*>(raw);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, quad = lane % 4;
    const int row = blockIdx.z / headTiles, headTile = blockIdx.z % headTiles,
              heads = min(kHeads, a.shape.queryHeads - headTile * kHeads);
    letNextKernelStart();
    // Positions change only at a step's end, so they may be read before the wait.
    const int sequence = a.oneSequence ? a.sequence : row, position = a.position[row];
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    if (!active) return;

    const std::size_t listed = std::size_t(row) * a.list.capacity;
    LatentKeys keys;
    keys.blocks = a.blocks + std::size_t(a.headFirst[sequence]) * a.shape.blockSize * kDim;
    keys.ids = a.list.block != nullptr ? a.list.block + listed : nullptr;
    keys.places = a.list.slot != nullptr ? a.list.slot + listed : keys.ids;
    keys.entries = a.list.count != nullptr ? a.list.count[row] : byBlock(position) + 1;
    keys.blockSize = a.shape.blockSize;
    keys.byBlock = byBlock;
    const int tiles = (keys.entries * a.shape.blockSize + 63) / 64;
    const int begin = int(std::int64_t(tiles) * blockIdx.x / gridDim.x),
              end = int(std::int64_t(tiles) * (blockIdx.x + 1) / gridDim.x);
    const std::size_t firstHead = std::size_t(row) * a.shape.queryHeads + headTile * kHeads;
    loadQueryRows(shared, a.q + firstHead * kDim, heads);
    if (threadIdx.x < kHeads) shared.position[threadIdx.x] = position;
    float acc[1][Width::kTiles][4];
    attendLatent(shared, keys, begin, end, a.scale, acc);

    Bf16* out = a.out + firstHead * kValue;
    const int splits = gridDim.x;
    float* cell = a.scratch.partial + std::size_t(blockIdx.z) * splits * kHeads * kCell;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int head = lane / 4 + half * 8;
        if (head >= heads) continue;
        const float sum = shared.sum[head], inverse = sum > 0 ? 1.f / sum : 0.f;
#pragma unroll
        for (int i = 0; i < Width::kTiles; ++i) {
            const int channel = warp * Width::kWarpValues + i * 8 + quad * 2;
            const float x = acc[0][i][half * 2], y = acc[0][i][half * 2 + 1];
            if (splits == 1)
                *reinterpret_cast<std::uint32_t*>(out + head * kValue + channel) = packBf16(x * inverse, y * inverse);
            else
                *reinterpret_cast<float2*>(cell + (std::size_t(blockIdx.x) * kHeads + head) * kCell + channel) =
                    make_float2(x, y);
        }
    }
    if (splits > 1 && threadIdx.x < heads)
        *reinterpret_cast<float2*>(cell + (std::size_t(blockIdx.x) * kHeads + threadIdx.x) * kCell + kValue) =
            make_float2(shared.maximum[threadIdx.x], shared.sum[threadIdx.x]);
}

constexpr int kMostSplits = 256;

/// Grid (heads of a tile, rows * head tiles). Merges the splits of one head; a thread takes two channels.
template <int kDim>
__global__ void __launch_bounds__(LatentWidth<kDim>::kValue / 2)
    latentMergeKernel(DecodeAttentionArgs a, int headTiles, int splits) {
    constexpr int kValue = LatentWidth<kDim>::kValue, kCell = LatentWidth<kDim>::kCell;
    __shared__ float factors[kMostSplits];
    __shared__ float total;
    const int row = blockIdx.y / headTiles, headTile = blockIdx.y % headTiles, head = blockIdx.x;
    letNextKernelStart();
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (!active || headTile * kHeads + head >= a.shape.queryHeads) return;
    const float* cell = a.scratch.partial + (std::size_t(blockIdx.y) * splits * kHeads + head) * kCell;
    const std::size_t stride = std::size_t(kHeads) * kCell; // from one split to the next
    if (threadIdx.x < kWarp) { // one warp works out the weights of the splits; logits are in units of log2
        float maximum = -INFINITY, sum = 0;
        for (int s = threadIdx.x; s < splits; s += kWarp) maximum = fmaxf(maximum, cell[s * stride + kValue]);
        maximum = warpMax(maximum);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
        for (int s = threadIdx.x; s < splits; s += kWarp) {
            const float factor = exp2f(cell[s * stride + kValue] - reference);
            factors[s] = factor;
            sum += factor * cell[s * stride + kValue + 1];
        }
        sum = warpSum(sum);
        if (threadIdx.x == 0) total = sum;
    }
    __syncthreads();
    const int channel = threadIdx.x * 2;
    float2 out = make_float2(0, 0);
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
        const float2 value = *reinterpret_cast<const float2*>(cell + s * stride + channel);
        out.x = fmaf(factors[s], value.x, out.x);
        out.y = fmaf(factors[s], value.y, out.y);
    }
    const float inverse = total > 0 ? 1.f / total : 0.f;
    *reinterpret_cast<std::uint32_t*>(
        a.out + (std::size_t(row) * a.shape.queryHeads + headTile * kHeads + head) * kValue + channel) =
        packBf16(out.x * inverse, out.y * inverse);
}

/// Grid: tiles of 64 (token, head) rows. The last tile, which attends to the most keys, comes first.
template <int kDim>
__global__ void __launch_bounds__(kThreads) latentPrefillKernel(PrefillAttentionArgs a, Divider byBlock) {
    extern __shared__ __align__(128) unsigned char raw[];
    using Width = LatentWidth<kDim>;
    auto& shared = *reinterpret_cast<PromptShared<kDim>*>(raw);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, quad = lane % 4;
    const int tile = int(gridDim.x) - 1 - int(blockIdx.x), heads = a.shape.queryHeads;
    const std::int64_t firstRow = std::int64_t(tile) * 64;
    const int rows = int(min(std::int64_t(64), std::int64_t(a.n) * heads - firstRow));
    letNextKernelStart();
    waitForEarlierKernels();
    loadQueryRows(shared, a.q + std::size_t(firstRow) * kDim, rows);
    if (threadIdx.x < 64)
        shared.position[threadIdx.x] = a.firstPosition + int((firstRow + min(int(threadIdx.x), rows - 1)) / heads);
    const int lastPosition = a.firstPosition + int((firstRow + rows - 1) / heads);
    LatentKeys keys;
    keys.blocks = a.blocks;
    keys.ids = keys.places = nullptr;
    keys.entries = byBlock(lastPosition) + 1;
    keys.blockSize = a.shape.blockSize;
    keys.byBlock = byBlock;
    float acc[4][Width::kTiles][4];
    attendLatent(shared, keys, 0, lastPosition / 32 + 1, a.scale, acc);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = r * 16 + lane / 4 + half * 8;
            if (row >= rows) continue;
            const float sum = shared.sum[row], inverse = sum > 0 ? 1.f / sum : 0.f;
#pragma unroll
            for (int i = 0; i < Width::kTiles; ++i)
                *reinterpret_cast<std::uint32_t*>(a.out + std::size_t(firstRow + row) * Width::kValue +
                                                  warp * Width::kWarpValues + i * 8 + quad * 2) =
                    packBf16(acc[r][i][half * 2] * inverse, acc[r][i][half * 2 + 1] * inverse);
        }
}

int headTilesOf(const AttentionShape& shape) { return (shape.queryHeads + kHeads - 1) / kHeads; }

/// How many thread blocks share the keys of one (row, 16 heads), so that all thread blocks together fill the GPU once.
int splitsOf(const Launch& how, const AttentionShape& shape, int rows, int maxBlocks) {
    const int tiles = std::max(1, (maxBlocks * shape.blockSize + 63) / 64), natural = rows * headTilesOf(shape);
    return std::clamp(how.multiprocessors / natural, 1, std::min(tiles, kMostSplits));
}

template <int kDim> void launchDecode(const Launch& how, const DecodeAttentionArgs& args) {
    const int headTiles = headTilesOf(args.shape), splits = splitsOf(how, args.shape, args.rows, args.maxBlocks);
    const auto tiles = unsigned(args.rows * headTiles);
    allowShared(latentDecodeKernel<kDim>, sizeof(DecodeShared<kDim>), "preparing the attention");
    launch(how, {dim3(unsigned(splits), 1, tiles), dim3(kThreads), sizeof(DecodeShared<kDim>)},
           latentDecodeKernel<kDim>, "attending", args, headTiles, Divider(args.shape.blockSize));
    if (splits == 1) return;
    launch(how, {dim3(unsigned(std::min(kHeads, args.shape.queryHeads)), tiles), dim3(LatentWidth<kDim>::kValue / 2)},
           latentMergeKernel<kDim>, "merging the attention", args, headTiles, splits);
}

template <int kDim> void launchPrefill(const Launch& how, const PrefillAttentionArgs& args) {
    const std::int64_t rows = std::int64_t(args.n) * args.shape.queryHeads;
    allowShared(latentPrefillKernel<kDim>, sizeof(PromptShared<kDim>), "preparing the prompt's attention");
    launch(how, {dim3(unsigned((rows + 63) / 64)), dim3(kThreads), sizeof(PromptShared<kDim>)},
           latentPrefillKernel<kDim>, "attending to the prompt", args, Divider(args.shape.blockSize));
}

} // namespace

std::size_t latentPartialFloats(const Launch& how, const AttentionShape& shape, int rows, int maxBlocks) {
    const int splits = splitsOf(how, shape, rows, maxBlocks);
    return splits == 1 ? 0
                       : std::size_t(rows) * std::size_t(headTilesOf(shape)) * std::size_t(splits) * kHeads *
                             std::size_t(shape.latentValue + 2);
}

void latentDecodeAttention(const Launch& how, const DecodeAttentionArgs& args) {
    args.shape.dim == kLatentDim ? launchDecode<kLatentDim>(how, args) : launchDecode<kSmallLatentDim>(how, args);
}

void latentPrefillAttention(const Launch& how, const PrefillAttentionArgs& args) {
    args.shape.dim == kLatentDim ? launchPrefill<kLatentDim>(how, args) : launchPrefill<kSmallLatentDim>(how, args);
}

} // namespace kvscope::cuda
