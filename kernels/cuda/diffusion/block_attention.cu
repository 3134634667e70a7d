#include "kernels/cuda/diffusion/block_attention.h"

#include "kernels/cuda/attention/attention_stage.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kKeyTokens = StagePlaces<128>::kTokens;
constexpr int kRowWarps = 4, kThreads = kRowWarps * kWarp, kQueryRows = kRowWarps * 16;
// Shared memory would allow three thread blocks of 128 channels, but then a thread has too few registers.
constexpr int kStages = 2, kBlocksPerProcessor = 2;

/// The keys that a (row, KV head) attends to: [0, tokens) where `pages` is null, else those of the listed pages that
/// lie below `end`.
struct Keys {
    const std::int32_t* pages = nullptr;
    int tokens = 0, end = 0;
    __device__ int tiles() const { return (tokens + kKeyTokens - 1) / kKeyTokens; }
};

__device__ inline Keys keysOf(const BlockRow& row, const std::int32_t* pages, const std::int32_t* pageCount, int item,
                              int capacity, int blockSize) {
    if (pageCount == nullptr || !row.is(BlockRow::kSparse)) return {nullptr, row.keys, row.keys};
    return {pages + std::size_t(item) * capacity, pageCount[item] * blockSize, row.keys};
}

/// The tiles [begin, end) of split `index`.
struct Share {
    int begin, end;
    __device__ Share(int tiles, int index, int splits)
        : begin(int(std::int64_t(tiles) * index / splits)), end(int(std::int64_t(tiles) * (index + 1) / splits)) {}
};

/// Splits that a list of so many tiles fills.
__device__ inline int filledSplits(int tiles, int splits) { return min(tiles, splits); }

/// Copies keys and values of 64 tokens to shared memory; what lies behind the last one is zero.
template <int kDim>
__device__ inline void fetchTile(uint4* stage, const Bf16* blocks, const Keys& keys, int tile, const Divider& byBlock) {
    using S = StagePlaces<kDim>;
    const int bs = byBlock.divisor;
    const auto blockOf = [&](int token) { // of a token below keys.tokens
        const int entry = byBlock(token);
        return blocks + std::size_t(keys.pages != nullptr ? keys.pages[entry] : entry) * blockElements(bs, kDim);
    };
    // A thread copies the same piece of every kTokenStep-th key, and of every kChannelStep-th channel.
    constexpr int kTokenStep = kThreads / S::kRow, kChannelStep = kThreads / 8;
    static_assert(kTokenStep % 8 == 0 && kChannelStep % 8 == 0); // so that a row's number permutes its pieces alike
    const int keyPiece = int(threadIdx.x) % S::kRow, firstToken = int(threadIdx.x) / S::kRow;
    uint4* const keyTo = stage + S::key(firstToken, keyPiece);
#pragma unroll 4
    for (int i = 0; i < kKeyTokens / kTokenStep; ++i) {
        const int id = tile * kKeyTokens + firstToken + i * kTokenStep;
        const bool known = id < keys.tokens;
        const int from = known ? id : 0;
        copyPiece(keyTo + i * kTokenStep * S::kRow, blockOf(from) + (from - byBlock(from) * bs) * kDim + keyPiece * 8,
                  known);
    }
    const int valuePiece = int(threadIdx.x) % 8, firstChannel = int(threadIdx.x) / 8;
    const int id = tile * kKeyTokens + valuePiece * 8;
    const bool known = id < keys.tokens; // tokens of a piece past the last one are finite numbers, and masked
    const int from = known ? id : 0;
    uint4* const valueTo = stage + S::value(firstChannel, valuePiece);
    const Bf16* const values =
        blockOf(from) + std::size_t(bs) * kDim + std::size_t(firstChannel) * bs + (from - byBlock(from) * bs);
#pragma unroll 4
    for (int i = 0; i < kDim / kChannelStep; ++i)
        copyPiece(valueTo + i * kChannelStep * 8, values + i * kChannelStep * bs, known);
}

/// Attends with the 16 queries of a warp to a tile in shared memory.
template <int kDim>
__device__ inline void attendStage(const uint4* stage, const std::uint32_t (&q)[kDim / 32][2][4], const Keys& keys,
                                   int tile, float scale, const Divider& byBlock, Accumulator<kDim>& acc) {
    const int lane = int(threadIdx.x) % kWarp, row = lane / 4, quad = lane % 4;
    float logits[8][4] = {};
    multiplyKeys<kDim>(stage, row, quad, q, logits);
    // Tokens are masked behind the last one, and in the last listed page, which may be incomplete.
    const bool whole = (tile + 1) * kKeyTokens <= keys.tokens - (keys.pages != nullptr ? byBlock.divisor : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int first = tile * kKeyTokens + half * 32 + 8 * quad; // 8 tokens of one KV block
        int position = first;
        if (!whole && keys.pages != nullptr && first < keys.tokens) {
            const int entry = byBlock(first);
            position = keys.pages[entry] * byBlock.divisor + first - entry * byBlock.divisor;
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int within = 2 * j + e;
                const bool valid = whole || (first + within < keys.tokens && position + within < keys.end);
                float(&x)[4] = logits[half * 4 + j];
                x[e] = valid ? x[e] * scale : -INFINITY;
                x[e + 2] = valid ? x[e + 2] * scale : -INFINITY;
            }
    }
    std::uint32_t p[8][2];
    advanceSoftmax<kDim, 8>(logits, acc, p);
    multiplyValues<kDim>(stage, row, quad, p, acc);
}

/// Grid (splits, kvHeads, rows * query tiles). A thread block takes 64 queries of a (row, KV head) and one share of its
/// keys; each warp takes 16 of the queries. Where tokens have lists of their own, a query tile is the tokens of a list.
template <int kDim>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    attentionKernel(BlockAttentionArgs a, Divider byBlock, int queryTiles) {
    extern __shared__ uint4 shared[]; // [kStages][StagePlaces::kSize]
    __shared__ std::uint8_t tokens[kMostDenoised];
    using S = StagePlaces<kDim>;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z) / queryTiles, queryTile = int(blockIdx.z) - row * queryTiles;
    const int group = shape.queryHeads / shape.kvHeads, item = row * shape.kvHeads + g, bs = shape.blockSize;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken)) return;
    const std::uint64_t active = activeOf(a.rows, row, g);
    const int ofTile = a.listTokens > 0 ? min(a.listTokens, kQueryRows) : kQueryRows, firstQuery = queryTile * ofTile;
    const int queries = min(__popcll(active) * group, firstQuery + ofTile); // up to the tile's last one
    if (firstQuery >= queries) return;
    const int lists = a.listTokens > 0 ? queryTiles : 1; // of a (row, KV head)
    const std::int32_t* const firstList = a.pages + (lists > 1 ? std::size_t(queryTile) * a.capacity : 0);
    const Keys keys = keysOf(of, firstList, a.pageCount, item, lists * a.capacity, bs);
    const int used = filledSplits(keys.tiles(), a.splits);
    if (int(blockIdx.x) >= used) return;
    const Share share(keys.tiles(), int(blockIdx.x), used);
    const Bf16* const blocks =
        a.blocks + std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g]) * blockElements(bs, kDim);
    const auto fetch = [&](int tile) {
        if (tile < share.end) fetchTile<kDim>(shared + tile % kStages * S::kSize, blocks, keys, tile, byBlock);
        asm volatile("cp.async.commit_group;");
    };
    for (int ahead = 0; ahead < kStages - 1; ++ahead) fetch(share.begin + ahead);
    listActive(active, tokens);

    const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp, rowInTile = lane / 4, quad = lane % 4;
    const int mine = firstQuery + warp * 16;
    const auto headOf = [&](int query) { // over the query heads of all tokens
        const int token = query / group;
        return std::size_t(row * a.rows.block + tokens[token]) * shape.queryHeads + g * group + (query - token * group);
    };
    std::uint32_t q[kDim / 32][2][4];
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) {
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (mine + rowInTile < queries)
            low = *reinterpret_cast<const uint4*>(a.q + headOf(mine + rowInTile) * kDim + c * 32 + quad * 8);
        if (mine + rowInTile + 8 < queries)
            high = *reinterpret_cast<const uint4*>(a.q + headOf(mine + rowInTile + 8) * kDim + c * 32 + quad * 8);
        setFragment(low, high, q[c]);
    }
    Accumulator<kDim> acc;
    acc.clear();
    for (int tile = share.begin; tile < share.end; ++tile) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
        __syncthreads(); // the tile is there, and all warps have done with the one whose stage is filled next
        fetch(tile + kStages - 1);
        if (mine < queries) attendStage<kDim>(shared + tile % kStages * S::kSize, q, keys, tile, a.scale, byBlock, acc);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        const int query = mine + rowInTile + 8 * h;
        if (query >= queries) continue;
        if (a.partial != nullptr) {
            const std::size_t cell =
                (std::size_t(item) * a.splits + blockIdx.x) * std::size_t(a.rows.block * group) + query;
            float* const to = a.partial + cell * kDim;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                *reinterpret_cast<float2*>(to + i * 8 + quad * 2) =
                    make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
            if (quad == 0) a.states[cell] = make_float2(acc.maximum[h], acc.sum[h]);
            continue;
        }
        writeOut<kDim>(a.out + headOf(query) * kDim, quad, acc, h);
    }
}

// ---- Merge ----------------------------------------------------------------------------------------------------------

// Query heads at a time. One warp merges the splits of each, a second one attends to the block.
constexpr int kMergeHeads = 4;
constexpr int kMergeThreads = 2 * kMergeHeads * kWarp;

/// Keys and values of a block in shared memory, rows apart so that neighbouring lanes meet no bank twice. And what the
/// warps that attend to the block hand to those that merge.
template <int kDim> struct OwnShared {
    static constexpr int kPitch = kDim + 8;
    Bf16 keys[kMostDenoised * kPitch], values[kMostDenoised * kPitch]; // [token][channel]
    float queries[kMergeHeads][kDim], weights[kMergeHeads][kMostDenoised];
    float out[kMergeHeads][kDim], logSums[kMergeHeads];
};

/// Numbers that one load reads.
template <int kCount> struct alignas(kCount * sizeof(float)) Floats { float of[kCount]; };

/// What a warp has of one head: channels 4*lane.. (2*lane.. with 64 channels), and the log sum.
template <int kDim> struct Part {
    static constexpr int kMine = kDim / kWarp;
    float out[kMine];
    float logSum = -INFINITY;
};

/// Merges what the splits left for one query.
template <int kDim>
__device__ inline Part<kDim> mergeSplitsOf(const BlockMergeArgs& a, std::size_t first, std::size_t step, int used) {
    constexpr int kMine = Part<kDim>::kMine;
    const int lane = int(threadIdx.x) % kWarp;
    Part<kDim> part;
#pragma unroll
    for (int c = 0; c < kMine; ++c) part.out[c] = 0;
    if (used == 0) return part;
    float maximum = -INFINITY, sum = 0;
    for (int s = lane; s < used; s += kWarp) maximum = fmaxf(maximum, a.states[first + std::size_t(s) * step].x);
    maximum = warpMax(maximum);
    const float reference = maximum == -INFINITY ? 0.f : maximum;
    for (int begin = 0; begin < used; begin += kWarp) {
        const int here = min(kWarp, used - begin);
        float weight = 0;
        if (lane < here) {
            const float2 state = a.states[first + std::size_t(begin + lane) * step];
            weight = exp2f((state.x - reference) * kLog2e);
            sum += weight * state.y;
        }
#pragma unroll 16
        for (int s = 0; s < here; ++s) {
            const float factor = __shfl_sync(0xffffffffu, weight, s);
            const float* const from = a.partial + (first + std::size_t(begin + s) * step) * kDim + lane * kMine;
            const Floats<kMine> value = *reinterpret_cast<const Floats<kMine>*>(from);
#pragma unroll
            for (int c = 0; c < kMine; ++c) part.out[c] += factor * value.of[c];
        }
    }
    sum = warpSum(sum);
    const float inverse = sum > 0 ? 1.f / sum : 0.f;
#pragma unroll
    for (int c = 0; c < kMine; ++c) part.out[c] *= inverse;
    part.logSum = sum > 0 ? maximum + logf(sum) : -INFINITY;
    return part;
}

/// Copies the block's keys and values to shared memory. All threads of the thread block call this.
template <int kDim>
__device__ inline void fetchOwn(const BlockMergeArgs& a, const BlockRow& of, const Bf16* blocks, const Divider& byBlock,
                                OwnShared<kDim>& shared) {
    constexpr int kPitch = OwnShared<kDim>::kPitch, kRow = kDim / 8;
    const int block = a.rows.block, bs = a.rows.shape.blockSize;
    const auto keyOf = [&](int token) {
        const int entry = byBlock(of.first + token), within = of.first + token - entry * bs;
        return blocks + std::size_t(entry) * blockElements(bs, kDim) + std::size_t(within) * kDim;
    };
    const auto valueOf = [&](int token, int channel) {
        const int entry = byBlock(of.first + token), within = of.first + token - entry * bs;
        return blocks + std::size_t(entry) * blockElements(bs, kDim) + std::size_t(bs) * kDim +
               std::size_t(channel) * bs + within;
    };
#pragma unroll 2
    for (int i = int(threadIdx.x); i < block * kRow; i += kMergeThreads) {
        const int token = i / kRow, piece = i % kRow;
        *reinterpret_cast<uint4*>(shared.keys + token * kPitch + piece * 8) =
            *reinterpret_cast<const uint4*>(keyOf(token) + piece * 8);
    }
    if (block % 8 == 0 && of.first % 8 == 0) { // 8 tokens lie in one KV block
#pragma unroll 2
        for (int i = int(threadIdx.x); i < block * kRow; i += kMergeThreads) {
            const int channel = i % kDim, token = i / kDim * 8;
            const uint4 piece = *reinterpret_cast<const uint4*>(valueOf(token, channel));
            const Bf16* const values = reinterpret_cast<const Bf16*>(&piece);
#pragma unroll
            for (int t = 0; t < 8; ++t) shared.values[(token + t) * kPitch + channel] = values[t];
        }
        return;
    }
    for (int i = int(threadIdx.x); i < block * kDim; i += kMergeThreads) {
        const int token = i % block, channel = i / block;
        shared.values[token * kPitch + channel] = *valueOf(token, channel);
    }
}

/// Attention of one query to its block. slot: the warp's place in OwnShared.
template <int kDim>
__device__ inline Part<kDim> attendOwn(const BlockMergeArgs& a, OwnShared<kDim>& shared, int slot, const Bf16* q) {
    constexpr int kMine = Part<kDim>::kMine, kPitch = OwnShared<kDim>::kPitch;
    const int lane = int(threadIdx.x) % kWarp, block = a.rows.block;
    float* const query = shared.queries[slot];
    float* const weights = shared.weights[slot];
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kMine; ++c) query[lane * kMine + c] = __bfloat162float(q[lane * kMine + c]);
    __syncwarp();
    float maximum = -INFINITY, sum = 0;
    for (int token = lane; token < block; token += kWarp) {
        const Bf16* const key = shared.keys + token * kPitch;
        float dots[4] = {};
#pragma unroll 4
        for (int c = 0; c < kDim; c += 8) {
            const uint4 k = *reinterpret_cast<const uint4*>(key + c);
            const std::uint32_t words[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                dots[w] = fmaf(query[c + 2 * w], lowHalf(words[w]), dots[w]);
                dots[w] = fmaf(query[c + 2 * w + 1], highHalf(words[w]), dots[w]);
            }
        }
        weights[token] = ((dots[0] + dots[1]) + (dots[2] + dots[3])) * a.scale;
        maximum = fmaxf(maximum, weights[token]);
    }
    maximum = warpMax(maximum);
    for (int token = lane; token < block; token += kWarp) {
        weights[token] = exp2f((weights[token] - maximum) * kLog2e);
        sum += weights[token];
    }
    sum = warpSum(sum);
    __syncwarp();
    Part<kDim> part;
#pragma unroll
    for (int c = 0; c < kMine; ++c) part.out[c] = 0;
    for (int token = 0; token < block; ++token) {
        const float weight = weights[token];
#pragma unroll
        for (int c = 0; c < kMine; c += 2) {
            const std::uint32_t pair =
                *reinterpret_cast<const std::uint32_t*>(shared.values + token * kPitch + lane * kMine + c);
            part.out[c] = fmaf(weight, lowHalf(pair), part.out[c]);
            part.out[c + 1] = fmaf(weight, highHalf(pair), part.out[c + 1]);
        }
    }
    const float inverse = 1.f / sum;
#pragma unroll
    for (int c = 0; c < kMine; ++c) part.out[c] *= inverse;
    part.logSum = maximum + logf(sum);
    return part;
}

/// Grid (block, kvHeads, rows): a thread block takes the query heads of one token, two warps each.
template <int kDim> __global__ void __launch_bounds__(kMergeThreads) mergeKernel(BlockMergeArgs a, Divider byBlock) {
    constexpr int kMine = Part<kDim>::kMine;
    extern __shared__ uint4 raw[];
    auto& shared = *reinterpret_cast<OwnShared<kDim>*>(raw);
    letNextKernelStart();
    waitForEarlierKernels();
    const AttentionShape& shape = a.rows.shape;
    const int token = int(blockIdx.x), g = int(blockIdx.y), row = int(blockIdx.z), block = a.rows.block,
              bs = shape.blockSize, group = shape.queryHeads / shape.kvHeads, item = row * shape.kvHeads + g;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken)) return;
    fetchOwn<kDim>(a, of,
                   a.blocks + std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g]) * blockElements(bs, kDim),
                   byBlock, shared);
    __syncthreads();
    const std::uint64_t active = activeOf(a.rows, row, g);
    const bool anew = (active >> token & 1) != 0;
    const int rank = __popcll(active & ((std::uint64_t(1) << token) - 1));
    const Keys keys = keysOf(of, nullptr, a.pageCount, item, 0, bs);
    const int used = filledSplits(keys.tiles(), a.splits), lane = int(threadIdx.x) % kWarp,
              slot = int(threadIdx.x) / kWarp % kMergeHeads;
    const bool merges = int(threadIdx.x) < kMergeHeads * kWarp; // the others attend to the block
    const std::size_t queries = std::size_t(block * group);
    for (int firstHead = 0; firstHead < group; firstHead += kMergeHeads) {
        const int h = firstHead + slot;
        const std::size_t head = std::size_t(row * block + token) * shape.queryHeads + g * group + h;
        const bool mine = h < group;
        Part<kDim> prefix;
        if (firstHead > 0) __syncthreads(); // what was handed over has been read
        if (mine && !merges) {
            const Part<kDim> own = attendOwn<kDim>(a, shared, slot, a.q + head * kDim);
#pragma unroll
            for (int c = 0; c < kMine; ++c) shared.out[slot][lane * kMine + c] = own.out[c];
            if (lane == 0) shared.logSums[slot] = own.logSum;
        } else if (mine && anew) {
            prefix = mergeSplitsOf<kDim>(a, std::size_t(item) * a.splits * queries + std::size_t(rank * group + h),
                                         queries, used);
            if (a.prefix != nullptr)
#pragma unroll
                for (int c = 0; c < kMine; ++c) a.prefix[head * kDim + lane * kMine + c] = prefix.out[c];
            if (a.prefixSums != nullptr && lane == 0) a.prefixSums[head] = prefix.logSum;
        } else if (mine) {
#pragma unroll
            for (int c = 0; c < kMine; ++c) prefix.out[c] = a.prefix[head * kDim + lane * kMine + c];
            prefix.logSum = a.prefixSums[head];
        }
        __syncthreads();
        if (!mine || !merges) continue;
        const float ownSum = shared.logSums[slot], most = fmaxf(prefix.logSum, ownSum),
                    ofPrefix = exp2f((prefix.logSum - most) * kLog2e), ofBlock = exp2f((ownSum - most) * kLog2e),
                    inverse = 1.f / (ofPrefix + ofBlock);
        const float* const own = shared.out[slot] + lane * kMine;
#pragma unroll
        for (int c = 0; c < kMine; c += 2)
            *reinterpret_cast<std::uint32_t*>(a.out + head * kDim + lane * kMine + c) =
                packBf16((ofPrefix * prefix.out[c] + ofBlock * own[c]) * inverse,
                         (ofPrefix * prefix.out[c + 1] + ofBlock * own[c + 1]) * inverse);
    }
}

int queryTilesOf(const BlockRows& rows) { return (rows.queries() + kQueryRows - 1) / kQueryRows; }
int queryTilesOf(const BlockAttentionArgs& args) {
    return args.listTokens > 0 ? args.lists() : queryTilesOf(args.rows);
}

template <int kDim> void launchAttention(const Launch& how, const BlockAttentionArgs& args) {
    constexpr std::size_t kShared = std::size_t(kStages) * StagePlaces<kDim>::kSize * sizeof(uint4);
    raiseShared(attentionKernel<kDim>, kShared, "preparing the attention of blocks");
    launch(
        how,
        {dim3(unsigned(args.splits), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows * queryTilesOf(args))),
         dim3(kThreads), kShared},
        attentionKernel<kDim>, "attending with blocks", args, Divider(args.rows.shape.blockSize), queryTilesOf(args));
}

template <int kDim> void launchMerge(const Launch& how, const BlockMergeArgs& args) {
    raiseShared(mergeKernel<kDim>, sizeof(OwnShared<kDim>), "preparing the merge of blocks");
    launch(how,
           {dim3(unsigned(args.rows.block), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
            dim3(kMergeThreads), sizeof(OwnShared<kDim>)},
           mergeKernel<kDim>, "merging with the blocks", args, Divider(args.rows.shape.blockSize));
}

} // namespace

int blockSplits(const Launch& how, const BlockRows& rows, int maxKeys) {
    const int tiles = std::max(1, (maxKeys + kKeyTokens - 1) / kKeyTokens),
              natural = std::max(1, rows.items() * queryTilesOf(rows));
    return std::clamp(how.multiprocessors * kBlocksPerProcessor / natural, 1, tiles);
}

void blockAttention(const Launch& how, const BlockAttentionArgs& args) {
    checkAttentionShape(args.rows.shape);
    if (args.rows.rows == 0) return;
    args.rows.shape.dim == 64 ? launchAttention<64>(how, args) : launchAttention<128>(how, args);
}

void mergeBlocks(const Launch& how, const BlockMergeArgs& args) {
    if (args.rows.rows == 0) return;
    args.rows.shape.dim == 64 ? launchMerge<64>(how, args) : launchMerge<128>(how, args);
}

} // namespace kvscope::cuda
