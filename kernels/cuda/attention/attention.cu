#include "kernels/cuda/attention/attention.h"

#include "kernels/cuda/attention/attention_cluster.h"
#include "kernels/cuda/attention/attention_coded.h"
#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/attention/attention_ring.h"
#include "kernels/cuda/attention/attention_stage.cuh"
#include "kernels/cuda/attention/coded_blocks.cuh"
#include "kernels/cuda/attention/hopper_prefill.h"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

/// Where a row's blocks lie: ids and places of the listed blocks. Both null: entry i is the block first + i, which lies
/// at its id.
struct BlockList {
    const std::int32_t *ids, *places;
    int first, entries, blockSize;
    Divider byBlock;
    __device__ int idOf(int entry) const { return ids != nullptr ? ids[entry] : first + entry; }
    __device__ int placeOf(int entry) const { return places != nullptr ? places[entry] : first + entry; }
};

/// The blocks of a head. kType: of those before the newest one.
template <int kDim, KvType kType> struct HeadBlocks {
    const char* blocks;
    const Bf16* newest; // with scales only, as what follows
    int newestId;
    const CodedParts& parts;

    __device__ HeadBlocks(const DecodeAttentionArgs& a, int head, int position, const Divider& byBlock,
                          const CodedParts& coded)
        : parts(coded) {
        const std::size_t size = blockElements(a.shape.blockSize, kDim);
        const std::size_t bytes = hasScales(kType) ? std::size_t(parts.bytes) : size * sizeof(Bf16);
        blocks = reinterpret_cast<const char*>(a.blocks) + std::size_t(a.headFirst[head]) * bytes;
        if constexpr (hasScales(kType)) newest = a.newest + std::size_t(head) * size, newestId = byBlock(position);
    }
    __device__ bool coded(const BlockList& list, int entry) const {
        return hasScales(kType) && list.idOf(entry) != newestId;
    }
    __device__ const Bf16* numbersAt(const BlockList& list, int entry) const {
        if constexpr (hasScales(kType)) return newest;
        return reinterpret_cast<const Bf16*>(blocks) +
               std::size_t(list.placeOf(entry)) * blockElements(list.blockSize, kDim);
    }
    __device__ const char* codesAt(const BlockList& list, int entry) const {
        return blocks + std::size_t(list.placeOf(entry)) * parts.bytes;
    }
};

/// What a warp loads to attend with 16 query heads to 32 tokens. For its four column tiles j, lane l loads the keys of
/// the tokens 8*(l/4/2) + 2j + (l/4)%2. The products with the queries then leave in lane l the logits of the heads l/4
/// and l/4 + 8 at the tokens 8*(l%4) to 8*(l%4) + 7. These are the tokens whose values lane l loads, 16 bytes of a
/// channel at a time, so that the lane's probabilities are operands of the product with the values as they are.
template <int kDim, KvType kType> struct Tile {
    static constexpr int kChunks = kDim / 32; // 64-byte pieces of a key row
    using Reader = CodedReader<kScaled<kType>>;
    using Scales = EightScales<kScaled<kType>>;
    uint4 k[4][kChunks], v[kDim / 8];
    int firstToken; // position of the first of the 8 tokens whose logits this lane has
    bool listed;

    __device__ void loadKeys(const BlockList& list, const HeadBlocks<kDim, kType>& from, int first) {
        const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
        const int group = first + 8 * (row / 2); // these 8 tokens share a block
        const int wanted = list.byBlock(group), entry = min(wanted, list.entries - 1);
        const int token = group - wanted * list.blockSize + row % 2;
        if (from.coded(list, entry)) {
            const char* block = from.codesAt(list, entry);
            const char* codes = block + Reader::bytesOf(token * kDim + quad * 8);
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                Scales scales;
                Reader{from.parts}.keyScales(scales, block, token, c * 32 + quad * 8);
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    k[j][c] = numbersOf<kScaled<kType>>(Reader::codes(codes + Reader::bytesOf(2 * j * kDim + c * 32)),
                                                        scales);
            }
            return;
        }
        const Bf16* keys = from.numbersAt(list, entry) + token * kDim;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int c = 0; c < kChunks; ++c) k[j][c] = loadOnce(keys + 2 * j * kDim + c * 32 + quad * 8);
    }
    __device__ void loadValues(const BlockList& list, const HeadBlocks<kDim, kType>& from, int first) {
        const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4, mine = first + 8 * quad;
        const int wanted = list.byBlock(mine), entry = min(wanted, list.entries - 1),
                  within = mine - wanted * list.blockSize;
        listed = wanted < list.entries;
        firstToken = list.idOf(entry) * list.blockSize + within;
        if (from.coded(list, entry)) {
            const char* block = from.codesAt(list, entry);
            const char* codes = block + from.parts.values + Reader::bytesOf(row * list.blockSize + within);
            Scales scales;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                if (i == 0 || (kType == KvType::INT4 && i * 8 % KvFormat::kValueGroup == 0))
                    Reader{from.parts}.valueScales(scales, block, within, i * 8);
                v[i] =
                    numbersOf<kScaled<kType>>(Reader::codes(codes + Reader::bytesOf(i * 8 * list.blockSize)), scales);
            }
            return;
        }
        const Bf16* values = from.numbersAt(list, entry) + std::size_t(list.blockSize) * kDim + within;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) v[i] = loadOnce(values + std::size_t(i * 8 + row) * list.blockSize);
    }
};

/// Attends to a loaded tile. Calls then(0) when the keys have been used and then(1) when the values have been used: the
/// caller may load the next ones there.
template <int kDim, KvType kType, class Then>
__device__ inline void attendTile(Tile<kDim, kType>& tile, const DecodeAttentionArgs& a, const float* headBias,
                                  int position, const std::uint32_t (&q)[kDim / 32][2][4], Accumulator<kDim>& acc,
                                  Then&& then) {
    const unsigned reach = reachOf(a.window);
    float logits[4][4] = {};
    if constexpr (hasScales(kType)) __syncwarp(); // lanes may have loaded from blocks of both kinds
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], tile.k[j][c].x, tile.k[j][c].y);
            mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], tile.k[j][c].z, tile.k[j][c].w);
        }
    then(0);
    // logits[j][e]: head row (+8 for e >= 2), token firstToken + 2j + e%2
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int token = tile.firstToken + 2 * j + e;
            const bool valid = tile.listed && unsigned(position - token) < reach;
            const float bias = headBias != nullptr && valid ? a.bias.scale * headBias[token] : 0.f;
            logits[j][e] = valid ? logits[j][e] * a.scale + bias : -INFINITY;
            logits[j][e + 2] = valid ? logits[j][e + 2] * a.scale + bias : -INFINITY;
        }
    std::uint32_t p[4][2];
    advanceSoftmax<kDim, 4>(logits, acc, p);
    if constexpr (hasScales(kType)) __syncwarp();
        // Words 0 and 1 of a piece of values are the tokens firstToken to firstToken + 3, like column tiles 0 and 1 of
        // the probabilities. Words 2 and 3 are the next four tokens, like column tiles 2 and 3.
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
        mma16816(acc.out[i], p[0][0], p[0][1], p[1][0], p[1][1], tile.v[i].x, tile.v[i].y);
        mma16816(acc.out[i], p[2][0], p[2][1], p[3][0], p[3][1], tile.v[i].z, tile.v[i].w);
    }
    then(1);
}

constexpr int kListed = 512; // entries of a list that a thread block keeps in shared memory

template <int kDim, int kWarps> struct DecodeShared {
    MergeShared<kDim, kWarps> merge;
    std::int32_t ids[kListed], places[kListed];
};

/// Grid: (splits, kvHeads, rows * head tiles). A thread block takes one split of a list, and its warps take the split's
/// tiles in turn. Thread blocks of neighbouring splits form clusters.
template <int kDim, int kWarps, KvType kType>
__global__ void __launch_bounds__(kWarps* kWarp)
    decodeKernel(DecodeAttentionArgs a, DecodePlan plan, CodedParts parts) {
    extern __shared__ uint4 raw[];
    auto& shared = *reinterpret_cast<DecodeShared<kDim, kWarps>*>(raw);
    constexpr int kThreads = kWarps * kWarp;
    const int warp = threadIdx.x / kWarp;
    const DecodePlace place(a.shape, plan);
    const int row = place.row, item = place.item;
    letNextKernelStart();
    // Positions change only at a step's end, so they may be read before the wait.
    const int sequence = a.oneSequence ? a.sequence : row;
    const int head = sequence * a.shape.kvHeads + place.g;
    int position = a.packedTokens == nullptr ? a.position[row] + (a.shift != nullptr ? a.shift[row] : 0) : 0;
    const bool active = a.active == nullptr || a.active[row] != 0;
    const HeadBlocks<kDim, kType> headBlocks(a, head, position, plan.byBlock, parts);
    const float* headBias =
        a.bias.scores != nullptr && a.bias.scale != 0.f ? a.bias.scores + a.bias.first[head] : nullptr;
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    if (!active) return; // the whole cluster leaves

    if (a.packedTokens != nullptr) position = a.packedTokens[item] - 1;
    const int skipped = a.list.first != nullptr ? a.list.first[item] : 0;
    const int firstBlock = a.list.count == nullptr ? firstInSight(position, a.window, plan.byBlock) : 0;
    const int entries = a.list.count != nullptr ? a.list.count[item] - skipped
                        : position < 0          ? 0
                                                : plan.byBlock(position) + 1 - firstBlock;
    const std::size_t firstListed = std::size_t(item) * a.list.capacity + skipped;
    const std::int32_t* blockIds = a.list.block != nullptr ? a.list.block + firstListed : nullptr;
    const std::int32_t* slots = a.list.slot != nullptr ? a.list.slot + firstListed : nullptr;
    std::uint32_t q[kDim / 32][2][4];
    loadQueries<kDim>(a, place, q);
    Accumulator<kDim> acc;
    acc.clear();
    const int tiles = (entries * a.shape.blockSize + kTile - 1) / kTile;
    const unsigned splitsHere = gridDim.x, share = unsigned(tiles) / splitsHere,
                   extra = unsigned(tiles) - share * splitsHere;
    const int begin = int(blockIdx.x * share + min(blockIdx.x, extra)),
              end = begin + int(share + (blockIdx.x < extra ? 1 : 0));
    // The entries of this split's list go to shared memory where they fit, so that the loads of a tile need not wait
    // for a load of its block's place.
    const int bs = a.shape.blockSize, firstEntry = plan.byBlock(begin * kTile);
    const int listed = min(entries, plan.byBlock(end * kTile + bs - 1)) - firstEntry;
    BlockList list{blockIds, slots != nullptr ? slots : blockIds, firstBlock, entries, bs, plan.byBlock};
    int shift = 0; // tokens of the entries before the first one in shared memory
    if (blockIds != nullptr && listed > 0 && listed <= kListed) {
        for (int i = threadIdx.x; i < listed; i += kThreads) {
            shared.ids[i] = list.ids[firstEntry + i];
            shared.places[i] = list.places[firstEntry + i];
        }
        __syncthreads();
        list = {shared.ids, shared.places, 0, listed, bs, plan.byBlock};
        shift = firstEntry * bs;
    }
    Tile<kDim, kType> tile;
    int at = begin + warp;
    if (at < end) {
        tile.loadKeys(list, headBlocks, at * kTile - shift);
        tile.loadValues(list, headBlocks, at * kTile - shift);
    }
    for (; at < end; at += kWarps) {
        const int next = at + kWarps;
        attendTile<kDim, kType>(tile, a, headBias, position, q, acc, [&](int part) {
            if (next >= end) return;
            if (part == 0)
                tile.loadKeys(list, headBlocks, next * kTile - shift);
            else
                tile.loadValues(list, headBlocks, next * kTile - shift);
        });
    }

    mergeSplits<kDim, kWarps, kThreads>(a, place, acc, shared.merge);
}

// ---- Prompt ---------------------------------------------------------------------------------------------------------

constexpr int kQueryTokens = 128, kKeyTokens = 64, kPrefillWarps = 8;

/// Grid: (query tiles, query heads). Each of 8 warps takes 16 query tokens. Keys and values of 64 tokens at a time go
/// through one of two stages in shared memory.
template <int kDim> __global__ void __launch_bounds__(kPrefillWarps* kWarp) prefillKernel(PrefillAttentionArgs a) {
    using Places = StagePlaces<kDim>;
    static_assert(Places::kTokens == kKeyTokens);
    extern __shared__ uint4 shared[]; // [2 stages][Places::kSize]
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const int head = blockIdx.y, g = head / (a.shape.queryHeads / a.shape.kvHeads);
    const int tile = gridDim.x - 1 - blockIdx.x; // the last tile first: it attends to the most tokens
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
        setFragment(low, high, q[c]);
    }
    const int lastToken = min(a.n, (tile + 1) * kQueryTokens) - 1;
    const int keyTiles = (a.firstPosition + lastToken) / kKeyTokens + 1;
    const int firstKeyTile =
        a.window > 0 ? max(0, a.firstPosition + tile * kQueryTokens + 1 - a.window) / kKeyTokens : 0;
    const unsigned reach = reachOf(a.window);
    const int knownTokens = a.firstPosition + a.n; // blocks exist up to here
    const auto fetch = [&](int keyTile) {
        uint4* stage = shared + keyTile % 2 * Places::kSize;
        for (int at = threadIdx.x; at < Places::kPieces; at += kPrefillWarps * kWarp) {
            const int token = at / Places::kRow, piece = at % Places::kRow, id = keyTile * kKeyTokens + token;
            const bool known = id < knownTokens;
            const int from = known ? id : 0;
            copyPiece(stage + Places::key(token, piece),
                      blocks + std::size_t(from / bs) * blockElements(bs, kDim) + std::size_t(from % bs) * kDim +
                          piece * 8,
                      known);
        }
        for (int at = threadIdx.x; at < Places::kPieces; at += kPrefillWarps * kWarp) {
            const int channel = at / 8, piece = at % 8, id = keyTile * kKeyTokens + piece * 8;
            const bool known = id < knownTokens; // tokens of a piece past the last one are finite numbers, and masked
            const int from = known ? id : 0;
            copyPiece(stage + Places::value(channel, piece),
                      blocks + std::size_t(from / bs) * blockElements(bs, kDim) + std::size_t(bs) * kDim +
                          std::size_t(channel) * bs + from % bs,
                      known);
        }
    };
    Accumulator<kDim> acc;
    acc.clear();
    fetch(firstKeyTile);
    asm volatile("cp.async.commit_group;");
    for (int keyTile = firstKeyTile; keyTile < keyTiles; ++keyTile) {
        if (keyTile + 1 < keyTiles) fetch(keyTile + 1);
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        const uint4* stage = shared + keyTile % 2 * Places::kSize;
        float logits[8][4] = {};
        multiplyKeys<kDim>(stage, row, quad, q, logits);
        const int q0 = a.firstPosition + firstToken + row, q1 = q0 + 8;
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int key = keyTile * kKeyTokens + j / 4 * 32 + 8 * quad + 2 * (j % 4) + e;
                const float add = bias != nullptr && key < knownTokens ? a.biasScale * bias[key] : 0.f;
                logits[j][e] = unsigned(q0 - key) < reach ? logits[j][e] * a.scale + add : -INFINITY;
                logits[j][e + 2] = unsigned(q1 - key) < reach ? logits[j][e + 2] * a.scale + add : -INFINITY;
            }
        std::uint32_t p[8][2];
        advanceSoftmax<kDim, 8>(logits, acc, p);
        multiplyValues<kDim>(stage, row, quad, p, acc);
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        const int token = firstToken + row + 8 * h;
        if (token >= a.n) continue;
        if (quad == 0 && a.logSums != nullptr)
            a.logSums[std::size_t(token) * a.shape.queryHeads + head] = acc.maximum[h] + logf(acc.sum[h]);
        writeOut<kDim>(a.out + (std::size_t(token) * a.shape.queryHeads + head) * kDim, quad, acc, h);
    }
}

/// How a launch divides the work of one (row, KV head).
struct Division {
    int warps = 4, cluster = 1, splits = 1;
};

Division divide(const Launch& how, const AttentionShape& shape, int rows, int maxBlocks) {
    const int headTiles = (shape.group() + kHeads - 1) / kHeads, natural = rows * shape.kvHeads * headTiles;
    const int tiles = std::max(1, (maxBlocks * shape.blockSize + kTile - 1) / kTile);
    Division division;
    // With few rows a warp should have only one tile, so that all loads are in flight at once. With many rows there are
    // two thread blocks for each multiprocessor.
    division.warps = natural * ((tiles + 7) / 8) <= how.multiprocessors * 2 ? 8 : 4;
    int wanted =
        std::clamp((how.multiprocessors * 2 + natural - 1) / natural, 1, (tiles + division.warps - 1) / division.warps);
    // One cluster merges its results through shared memory. That is worth taking a few tiles one after another.
    if (how.clusters && wanted > kCluster && tiles <= division.warps * kCluster * 4) wanted = kCluster;
    while (how.clusters && division.cluster * 2 <= std::min(wanted, kCluster)) division.cluster *= 2;
    division.splits = wanted / division.cluster * division.cluster;
    return division;
}

template <int kDim, int kWarps>
void launchDecode(const Launch& how, const Division& division, const DecodeAttentionArgs& args) {
    const int headTiles = (args.shape.group() + kHeads - 1) / kHeads;
    const DecodePlan plan{args.shape.group(), headTiles, Divider(args.shape.blockSize)};
    constexpr std::size_t kShared = sizeof(DecodeShared<kDim, kWarps>);
    withBlockType(args, [&](auto type) {
        constexpr KvType kType = decltype(type)::value;
        const auto kernel = decodeKernel<kDim, kWarps, kType>;
        allowShared(kernel, kShared, "preparing the attention");
        launch(how,
               {dim3(unsigned(division.splits), unsigned(args.shape.kvHeads), unsigned(args.rows * headTiles)),
                dim3(kWarps * kWarp), kShared, unsigned(division.cluster)},
               kernel, "attending", args, plan, hasScales(kType) ? CodedParts(args.format) : CodedParts());
    });
}

} // namespace

std::size_t attentionPartialFloats(const Launch& how, const AttentionShape& shape, int rows, int maxBlocks) {
    if (shape.latentValue > 0) return latentPartialFloats(how, shape, rows, maxBlocks);
    const std::size_t ring = ringAttentionFits(how, shape) ? ringPartialFloats(how, shape, rows, maxBlocks) : 0;
    if (ring > 0 && codedAttentionFits(how, shape)) return ring; // which has parts as large
    const Division division = divide(how, shape, rows, maxBlocks);
    const int headTiles = (shape.group() + kHeads - 1) / kHeads, clusters = division.splits / division.cluster;
    const std::size_t splits = clusters == 1 ? 0
                                             : std::size_t(rows) * std::size_t(shape.kvHeads) * std::size_t(headTiles) *
                                                   kHeads * std::size_t(clusters) * std::size_t(kCell(shape.dim));
    return std::max(ring, splits);
}

std::size_t attentionArrivals(const AttentionShape& shape, int rows) {
    return std::size_t(rows) * std::size_t(shape.kvHeads) * std::size_t((shape.group() + kHeads - 1) / kHeads) *
           kCluster;
}

void decodeAttention(const Launch& how, const DecodeAttentionArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    if (args.shape.latentValue > 0) return latentDecodeAttention(how, args);
    // Numbers that come back from codes get the kernel that reads codes, whose sums have an order of their own.
    const bool coded = hasScales(args.format.type);
    if (coded && codedAttentionFits(how, args.shape)) return codedAttention(how, args);
    if (!coded && ringAttentionFits(how, args.shape))
        return isShort(args.shape, args.rows, args.maxBlocks) ? clusterAttention(how, args) : ringAttention(how, args);
    const Division division = divide(how, args.shape, args.rows, args.maxBlocks);
    if (args.shape.dim == 64)
        division.warps == 8 ? launchDecode<64, 8>(how, division, args) : launchDecode<64, 4>(how, division, args);
    else
        division.warps == 8 ? launchDecode<128, 8>(how, division, args) : launchDecode<128, 4>(how, division, args);
}

void prefillAttention(const Launch& how, const PrefillAttentionArgs& args) {
    checkAttentionShape(args.shape);
    if (args.n == 0) return;
    if (args.shape.latentValue > 0) return latentPrefillAttention(how, args);
    if (hopperPrefillFits(how, args)) return hopperPrefill(how, args);
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
