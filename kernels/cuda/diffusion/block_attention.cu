#include "kernels/cuda/diffusion/block_attention.h"

#include "kernels/cuda/attention/attention_stage.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"
#include "kernels/cuda/diffusion/block_keys.cuh"
#include "kernels/cuda/diffusion/hopper_blocks.h"

#include <algorithm>

namespace kvscope::cuda {
namespace {

static_assert(kKeyTokens == StagePlaces<128>::kTokens);
constexpr int kRowWarps = 4, kThreads = kRowWarps * kWarp, kQueryRows = kRowWarps * 16;
// Shared memory would allow three thread blocks of 128 channels, but then a thread has too few registers.
constexpr int kStages = 2, kBlocksPerMultiprocessor = 2;

/// Copies keys and values of 64 tokens to shared memory; what lies behind the last one is zero.
template <int kDim>
__device__ inline void fetchTile(uint4* stage, const Bf16* blocks, const BlockKeys& keys, int tile,
                                 const Divider& byBlock) {
    using S = StagePlaces<kDim>;
    const int bs = byBlock.divisor;
    const auto blockOf = [&](int token) { // of a token below keys.tokens
        const int entry = byBlock(token);
        return blocks + std::size_t(keys.pages != nullptr ? keys.places[entry] : entry) * blockElements(bs, kDim);
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
__device__ inline void attendStage(const uint4* stage, const std::uint32_t (&q)[kDim / 32][2][4], const BlockKeys& keys,
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
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    attentionKernel(BlockAttentionArgs a, Divider byBlock, int queryTiles) {
    extern __shared__ uint4 shared[]; // [kStages][StagePlaces::kSize]
    __shared__ std::uint8_t tokens[kMostDenoised];
    using S = StagePlaces<kDim>;
    waitForEarlierKernels();
    letNextKernelStart(); // after the wait: see mergeKernel
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
    const BlockKeys keys = keysOf(of, firstList, a.places, a.pageCount, item, lists * a.capacity, bs);
    const int used = filledSplits(keys.tiles(), a.splits);
    if (int(blockIdx.x) >= used) return;
    const KeyShare share(keys.tiles(), int(blockIdx.x), used);
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
        float largest = 0;
        if (a.halves) {
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                largest = fmaxf(largest, fmaxf(fabsf(acc.out[i][2 * h]), fabsf(acc.out[i][2 * h + 1])));
            largest = quadMax(largest);
        }
        if (query >= queries) continue;
        if (a.partial != nullptr && a.halves) {
            const std::size_t cell =
                (std::size_t(item) * a.splits + blockIdx.x) * std::size_t(a.rows.block * group) + query;
            const Halving halving(largest);
            std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(a.partial) + cell * (kDim / 2);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                to[i * 4 + quad] = halving.pack(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
            if (quad == 0) a.states[cell] = make_float2(acc.maximum[h] + halving.logit, acc.sum[h] * halving.factor);
            continue;
        }
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

// Query heads at a time. Three warps have each: two merge half of the splits each, and the third attends to the block.
constexpr int kMergeHeads = 4;
constexpr int kPartThreads = kMergeHeads * kWarp; // the warps with the same part of the work
constexpr int kMergeThreads = 3 * kPartThreads;

/// Keys and values of a block in shared memory, rows apart so that neighbouring lanes meet no bank twice. And what the
/// other two warps of a head hand to the first.
template <int kDim> struct OwnShared {
    static constexpr int kPitch = kDim + 8;
    float queries[kMergeHeads][kDim], weights[kMergeHeads][kMostDenoised];
    float out[2][kMergeHeads][kDim]; // attention to the block; to the second warp's splits
    float logSums[kMergeHeads];
    float2 states[kMergeHeads];
    alignas(16) Bf16 rows[2 * kMostDenoised * kPitch]; // keys, then values, of the block's tokens [token][channel]
    __device__ Bf16* keys() { return rows; }
    __device__ Bf16* values(int block) { return rows + block * kPitch; }
    static std::size_t bytes(int block) {
        return sizeof(OwnShared) - std::size_t(kMostDenoised - block) * 2 * kPitch * sizeof(Bf16);
    }
};

/// Numbers that one load reads.
template <int kCount> struct alignas(kCount * sizeof(float)) Floats {
    float of[kCount];
    __device__ float at(int i) const { return of[i]; }
};
template <int kCount> struct alignas(kCount * sizeof(__half)) Halves {
    __half of[kCount];
    __device__ float at(int i) const { return __half2float(of[i]); }
};

/// What a warp has of one head: channels 4*lane.. (2*lane.. with 64 channels), and the log sum.
template <int kDim> struct Part {
    static constexpr int kMine = kDim / kWarp;
    float out[kMine];
    float logSum = -INFINITY;
};

/// What a warp has of the splits of one query: the largest logit, the sum of exponentials and, channels as in Part, the
/// weighted sum of values.
template <int kDim> struct Taken {
    static constexpr int kMine = Part<kDim>::kMine;
    float out[kMine];
    float maximum = -INFINITY, sum = 0;

    __device__ void clear() {
#pragma unroll
        for (float& value : out) value = 0;
    }
    /// Takes in the splits [begin, end). Their states and results are read at once, because the warp has nothing else
    /// to do until they come. Numbers: Floats or Halves
    template <class Numbers>
    __device__ void take(const BlockMergeArgs& a, std::size_t first, std::size_t step, int begin, int end) {
        constexpr int kAtOnce = 18; // half of the splits of eight KV heads on an H200
        const int lane = int(threadIdx.x) % kWarp;
        for (int at = begin; at < end; at += kAtOnce) {
            float2 state = make_float2(-INFINITY, 0.f);
            if (lane < min(kAtOnce, end - at)) state = a.states[first + std::size_t(at + lane) * step];
            Numbers values[kAtOnce];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) // what lies behind the last one is read as the last one, with no weight
                values[s] = reinterpret_cast<const Numbers*>(
                    a.partial)[(first + std::size_t(min(at + s, end - 1)) * step) * kWarp + lane];
            const float next = fmaxf(maximum, warpMax(state.x)), reference = next == -INFINITY ? 0.f : next,
                        keep = exp2f((maximum - reference) * kLog2e), weight = exp2f((state.x - reference) * kLog2e);
            sum = sum * keep + warpSum(weight * state.y);
            maximum = next;
#pragma unroll
            for (float& value : out) value *= keep;
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const float factor = __shfl_sync(0xffffffffu, weight, s);
#pragma unroll
                for (int c = 0; c < kMine; ++c) out[c] = fmaf(factor, values[s].at(c), out[c]);
            }
        }
    }
    /// What this warp and another one have, which left its part in shared memory. state: its maximum and sum
    __device__ Part<kDim> with(float2 state, const float* theirs) const {
        const float most = fmaxf(maximum, state.x), reference = most == -INFINITY ? 0.f : most,
                    mine = exp2f((maximum - reference) * kLog2e), other = exp2f((state.x - reference) * kLog2e),
                    all = mine * sum + other * state.y, inverse = all > 0 ? 1.f / all : 0.f;
        Part<kDim> part;
#pragma unroll
        for (int c = 0; c < kMine; ++c) part.out[c] = (mine * out[c] + other * theirs[c]) * inverse;
        part.logSum = all > 0 ? reference + logf(all) : -INFINITY;
        return part;
    }
};

/// Copies the block's keys and values to shared memory. The warps that attend to the block call this; a barrier of
/// theirs follows.
template <int kDim>
__device__ inline void fetchOwn(const BlockMergeArgs& a, const BlockRow& of, const Bf16* blocks, const Divider& byBlock,
                                OwnShared<kDim>& shared) {
    constexpr int kPitch = OwnShared<kDim>::kPitch, kRow = kDim / 8;
    const int block = a.rows.block, bs = a.rows.shape.blockSize;
    Bf16* const values = shared.values(block);
    const auto keyOf = [&](int token) {
        const int entry = byBlock(of.first + token), within = of.first + token - entry * bs;
        return blocks + std::size_t(entry) * blockElements(bs, kDim) + std::size_t(within) * kDim;
    };
    const auto valueOf = [&](int token, int channel) {
        const int entry = byBlock(of.first + token), within = of.first + token - entry * bs;
        return blocks + std::size_t(entry) * blockElements(bs, kDim) + std::size_t(bs) * kDim +
               std::size_t(channel) * bs + within;
    };
    const bool byEight = block % 8 == 0 && of.first % 8 == 0; // 8 tokens of values lie in one KV block
    const int thread = int(threadIdx.x) % kPartThreads;
#pragma unroll 2
    for (int i = thread; i < block * kRow; i += kPartThreads) {
        // The loads of key and value are both under way before either is stored.
        const int channel = i % kDim, first = i / kDim * 8;
        const uint4 key = *reinterpret_cast<const uint4*>(keyOf(i / kRow) + i % kRow * 8);
        uint4 value = make_uint4(0, 0, 0, 0);
        if (byEight) value = *reinterpret_cast<const uint4*>(valueOf(first, channel));
        *reinterpret_cast<uint4*>(shared.keys() + i / kRow * kPitch + i % kRow * 8) = key;
        const Bf16* const eight = reinterpret_cast<const Bf16*>(&value);
        if (byEight)
#pragma unroll
            for (int t = 0; t < 8; ++t) values[(first + t) * kPitch + channel] = eight[t];
    }
    for (int i = byEight ? block * kDim : thread; i < block * kDim; i += kPartThreads) {
        const int token = i % block, channel = i / block;
        values[token * kPitch + channel] = *valueOf(token, channel);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kPartThreads) : "memory");
}

/// Puts a query to where attendOwn reads it. A warp runs both, with the same slot: its place in OwnShared.
template <int kDim> __device__ inline void putQuery(OwnShared<kDim>& shared, int slot, const Bf16* q) {
    constexpr int kMine = Part<kDim>::kMine;
    const int lane = int(threadIdx.x) % kWarp;
    __syncwarp(); // the warp has done with the query before
#pragma unroll
    for (int c = 0; c < kMine; ++c) shared.queries[slot][lane * kMine + c] = __bfloat162float(q[lane * kMine + c]);
}

/// Attention of one query to its block.
template <int kDim> __device__ inline Part<kDim> attendOwn(const BlockMergeArgs& a, OwnShared<kDim>& shared, int slot) {
    constexpr int kMine = Part<kDim>::kMine, kPitch = OwnShared<kDim>::kPitch;
    const int lane = int(threadIdx.x) % kWarp, block = a.rows.block;
    const float* const query = shared.queries[slot];
    float* const weights = shared.weights[slot];
    __syncwarp();
    float maximum = -INFINITY, sum = 0;
    if (block <= kWarp / 2) { // two lanes have a token, each half of the channels
        const int token = lane % (kWarp / 2), firstChannel = lane / (kWarp / 2) * (kDim / 2);
        const Bf16* const key = shared.keys() + min(token, block - 1) * kPitch + firstChannel;
        float dots[4] = {};
#pragma unroll
        for (int c = 0; c < kDim / 2; c += 8) {
            const uint4 k = *reinterpret_cast<const uint4*>(key + c);
            const std::uint32_t words[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                dots[w] = fmaf(query[firstChannel + c + 2 * w], lowHalf(words[w]), dots[w]);
                dots[w] = fmaf(query[firstChannel + c + 2 * w + 1], highHalf(words[w]), dots[w]);
            }
        }
        float dot = (dots[0] + dots[1]) + (dots[2] + dots[3]);
        dot += __shfl_xor_sync(0xffffffffu, dot, kWarp / 2);
        if (lane < block) maximum = weights[lane] = dot * a.scale;
    }
    for (int token = lane; token < block && block > kWarp / 2; token += kWarp) {
        const Bf16* const key = shared.keys() + token * kPitch;
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
#pragma unroll 8
    for (int token = 0; token < block; ++token) {
        const float weight = weights[token];
#pragma unroll
        for (int c = 0; c < kMine; c += 2) {
            const std::uint32_t pair =
                *reinterpret_cast<const std::uint32_t*>(shared.values(block) + token * kPitch + lane * kMine + c);
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

/// Grid (block, kvHeads, rows): a thread block takes the query heads of one token. It attends to the block while it
/// waits for the attention to the prefix: the kernels of that let this one start after their own wait, so that what
/// came before them has ended. So what earlier forwards kept of tokens that are not active is read meanwhile, too.
/// Numbers: what the splits' results are, Floats or Halves.
template <int kDim, class Numbers>
__global__ void __launch_bounds__(kMergeThreads) mergeKernel(BlockMergeArgs a, Divider byBlock) {
    constexpr int kMine = Part<kDim>::kMine;
    extern __shared__ uint4 raw[];
    auto& shared = *reinterpret_cast<OwnShared<kDim>*>(raw);
    letNextKernelStart();
    const AttentionShape& shape = a.rows.shape;
    const int token = int(blockIdx.x), g = int(blockIdx.y), row = int(blockIdx.z), block = a.rows.block,
              bs = shape.blockSize, group = shape.queryHeads / shape.kvHeads, item = row * shape.kvHeads + g;
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken)) return waitForEarlierKernels();
    const std::uint64_t active = activeOf(a.rows, row, g);
    const bool anew = (active >> token & 1) != 0;
    const int rank = __popcll(active & ((std::uint64_t(1) << token) - 1));
    const BlockKeys keys = keysOf(of, nullptr, nullptr, a.pageCount, item, 0, bs);
    const int used = filledSplits(keys.tiles(), a.splits), half = (used + 1) / 2, lane = int(threadIdx.x) % kWarp,
              slot = int(threadIdx.x) / kWarp % kMergeHeads;
    const int part = int(threadIdx.x) / kPartThreads; // 0 and 1: a half of the splits; 2: the block
    const std::size_t queries = std::size_t(block * group);
    for (int firstHead = 0; firstHead < group; firstHead += kMergeHeads) {
        const int h = firstHead + slot;
        const std::size_t head = std::size_t(row * block + token) * shape.queryHeads + g * group + h,
                          cell = std::size_t(item) * a.splits * queries + std::size_t(rank * group + h);
        const bool mine = h < group;
        Part<kDim> prefix;
        if (mine && part == 0 && !anew) {
#pragma unroll
            for (int c = 0; c < kMine; ++c) prefix.out[c] = a.prefix[head * kDim + lane * kMine + c];
            prefix.logSum = a.prefixSums[head];
        }
        if (firstHead > 0) __syncthreads(); // what was handed over has been read
        if (part == 2) {
            if (mine) putQuery<kDim>(shared, slot, a.q + head * kDim);
            if (firstHead == 0)
                fetchOwn<kDim>(a, of,
                               a.blocks + std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g]) *
                                              blockElements(bs, kDim),
                               byBlock, shared);
            if (mine) {
                const Part<kDim> own = attendOwn<kDim>(a, shared, slot);
#pragma unroll
                for (int c = 0; c < kMine; ++c) shared.out[0][slot][lane * kMine + c] = own.out[c];
                if (lane == 0) shared.logSums[slot] = own.logSum;
            }
        }
        waitForEarlierKernels();
        Taken<kDim> taken;
        taken.clear();
        if (mine && anew && part < 2)
            taken.template take<Numbers>(a, cell, queries, part == 0 ? 0 : half, part == 0 ? half : used);
        if (mine && part == 1) {
#pragma unroll
            for (int c = 0; c < kMine; ++c) shared.out[1][slot][lane * kMine + c] = taken.out[c];
            if (lane == 0) shared.states[slot] = make_float2(taken.maximum, taken.sum);
        }
        __syncthreads();
        if (!mine || part > 0) continue;
        if (anew) {
            prefix = taken.with(shared.states[slot], shared.out[1][slot] + lane * kMine);
            if (a.prefix != nullptr)
#pragma unroll
                for (int c = 0; c < kMine; ++c) a.prefix[head * kDim + lane * kMine + c] = prefix.out[c];
            if (a.prefixSums != nullptr && lane == 0) a.prefixSums[head] = prefix.logSum;
        }
        const float ownSum = shared.logSums[slot], most = fmaxf(prefix.logSum, ownSum),
                    ofPrefix = exp2f((prefix.logSum - most) * kLog2e), ofBlock = exp2f((ownSum - most) * kLog2e),
                    inverse = 1.f / (ofPrefix + ofBlock);
        const float* const own = shared.out[0][slot] + lane * kMine;
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

template <int kDim, class Numbers> void launchMerge(const Launch& how, const BlockMergeArgs& args) {
    const std::size_t shared = OwnShared<kDim>::bytes(args.rows.block);
    raiseShared(mergeKernel<kDim, Numbers>, shared, "preparing the merge of blocks");
    launch(how,
           {dim3(unsigned(args.rows.block), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
            dim3(kMergeThreads), shared},
           mergeKernel<kDim, Numbers>, "merging with the blocks", args, Divider(args.rows.shape.blockSize));
}

} // namespace

int blockSplits(const Launch& how, const BlockRows& rows, int maxKeys) {
    const int tiles = std::max(1, (maxKeys + kKeyTokens - 1) / kKeyTokens),
              natural = std::max(1, rows.items() * queryTilesOf(rows));
    return std::clamp(how.multiprocessors * kBlocksPerMultiprocessor / natural, 1, tiles);
}

void blockAttention(const Launch& how, const BlockAttentionArgs& args) {
    checkAttentionShape(args.rows.shape);
    if (args.rows.rows == 0) return;
    if (hopperBlocksFit(how, args)) return hopperBlocks(how, args);
    args.rows.shape.dim == 64 ? launchAttention<64>(how, args) : launchAttention<128>(how, args);
}

void mergeBlocks(const Launch& how, const BlockMergeArgs& args) {
    if (args.rows.rows == 0) return;
    if (args.rows.shape.dim == 64)
        args.halves ? launchMerge<64, Halves<2>>(how, args) : launchMerge<64, Floats<2>>(how, args);
    else
        args.halves ? launchMerge<128, Halves<4>>(how, args) : launchMerge<128, Floats<4>>(how, args);
}

} // namespace kvscope::cuda
