#include "kernels/cuda/attention/attention_coded.h"

#include "kernels/cuda/attention/coded_blocks.cuh"
#include "kernels/cuda/attention/share_merge.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

// Making numbers of codes takes about 1,200 instructions of a warp for 32 tokens, and one warp of a quarter of a
// multiprocessor leaves half of its instructions unused while it waits for its own results. So two warps of each
// quarter compute. Registers are counted by warpgroups (setmaxnreg): of the third one, one warp loads and the others
// leave.
constexpr int kWarps = 2 * kRingWarps, kThreads = (kWarps + kRingWarps) * kWarp;
[[maybe_unused]] constexpr int kLoadingRegisters = 40, kComputingRegisters = 232;
constexpr int kTilesPerStage = kStageTokens / kTile, kStagesAtOnce = kWarps / kTilesPerStage;
constexpr int kMostBlocks = kStageTokens / 16; // per stage

/// Bytes of the blocks of a stage; of coded blocks the smallest ones take the most, because each has scales.
template <int kDim, KvType kType> constexpr int stageBytes() {
    if (!hasScales(kType)) return kStageTokens * kDim * 4;
    return kMostBlocks * int(KvFormat{kType, kStageTokens / kMostBlocks, kDim, kDim, false}.blockBytes());
}

/// The first of the eight channels that a lane has of piece c of a row. Two neighbouring pieces are neighbours in
/// memory, so that a lane reads 16 bytes of codes at once.
__device__ inline int channelOf(int c, int quad) { return c / 2 * 64 + quad * 16 + c % 2 * 8; }

/// The queries of an item as tensor-core fragments, [piece][instruction][lane]. They lie in shared memory, because the
/// registers are needed for numbers on their way from codes.
template <int kDim> struct Queries {
    uint4 fragments[kDim / 32][2][kWarp];

    /// All warps that compute write the same, and a lane reads only what it has written itself.
    __device__ void load(const DecodeAttentionArgs& a, const AttentionItem& item) {
        const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
        const Bf16* from = a.q + item.firstQueryHead * kDim;
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            uint4 low = make_uint4(0, 0, 0, 0), high = low;
            const int channel = channelOf(c, quad);
            if (row < item.heads) low = *reinterpret_cast<const uint4*>(from + row * kDim + channel);
            if (row + 8 < item.heads) high = *reinterpret_cast<const uint4*>(from + (row + 8) * kDim + channel);
            fragments[c][0][lane] = make_uint4(low.x, high.x, low.y, high.y);
            fragments[c][1][lane] = make_uint4(low.z, high.z, low.w, high.w);
        }
        __syncwarp();
    }
};

/// Results of half of the warps on their way to the other half, of eight query heads.
template <int kDim> struct HandOver {
    float2 out[kRingWarps][kDim / 8][kWarp];
    float2 state[kRingWarps][kWarp]; // maximum, sum
};

/// Room for the newest block of a list, which is bf16 where the others are coded.
template <int kDim, KvType kType> struct NewestRoom { uint4 block[kStageTokens * kDim * 4 / 16]; };
template <int kDim> struct NewestRoom<kDim, KvType::BF16> {};

/// A ring of stages. The blocks of a stage lie one behind the other.
template <int kDim, KvType kType> struct CodedRing {
    static constexpr int kRing = (kDim == 64 ? 2 : 1) * (hasScales(kType) ? 8 : 4);
    static_assert(kRing % kStagesAtOnce == 0); // so that a stage is always attended by the same warps
    uint4 blocks[kRing][stageBytes<kDim, kType>() / 16];
    alignas(16) float bias[kRing][kStageTokens];
    Queries<kDim> queries;
    MergeMemory<kDim> merge;
    HandOver<kDim> handOver;
    NewestRoom<kDim, kType> newest;
    std::int32_t ids[kRing][kMostBlocks], listed[kRing];
    std::uint64_t full[kRing], empty[kRing], newestEmpty;
};

#if __CUDA_ARCH__ >= 900

__device__ inline float exp2Fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Codes of 16 neighbours of a row, as they lie in shared memory, and the eight of a piece.
template <KvType kType> struct TwoPieces {
    EightCodes<kType> eight[2];
    __device__ void read(const char* at) {
        if constexpr (kType == KvType::INT4) {
            const uint2 both = *reinterpret_cast<const uint2*>(at);
            eight[0] = both.x, eight[1] = both.y;
        } else {
            const uint4 both = *reinterpret_cast<const uint4*>(at);
            eight[0] = make_uint2(both.x, both.y), eight[1] = make_uint2(both.z, both.w);
        }
    }
};

/// Takes four column tiles of logits, which are base-2 logarithms, into the running softmax and writes their
/// exponentials to `p` as fragments of the product with the values. What has been accumulated is brought to a new
/// maximum only where that has grown by more than kSlack; until then exponentials may be up to 2^kSlack.
template <int kDim>
__device__ inline void takeLogits(float (&logits)[4][4], Accumulator<kDim>& acc, std::uint32_t (&p)[4][2]) {
    constexpr float kSlack = 8.f;
    float most[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        most[h] = fmaxf(logits[0][2 * h], logits[0][2 * h + 1]);
#pragma unroll
        for (int j = 1; j < 4; ++j) most[h] = fmaxf(most[h], fmaxf(logits[j][2 * h], logits[j][2 * h + 1]));
    }
    if (__any_sync(0xffffffffu, most[0] > acc.maximum[0] + kSlack || most[1] > acc.maximum[1] + kSlack)) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float next = fmaxf(acc.maximum[h], most[h]);
            next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
            next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 2));
            const float factor = exp2Fast(acc.maximum[h] - (next == -INFINITY ? 0.f : next));
            acc.sum[h] *= factor;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) acc.out[i][2 * h] *= factor, acc.out[i][2 * h + 1] *= factor;
            acc.maximum[h] = next;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float reference = acc.maximum[h] == -INFINITY ? 0.f : acc.maximum[h];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float low = exp2Fast(logits[j][2 * h] - reference), high = exp2Fast(logits[j][2 * h + 1] - reference);
            acc.sum[h] += low + high;
            p[j][h] = packBf16(low, high);
        }
    }
}

/// A stage as the warps find it.
struct StageBlocks {
    const char* blocks;
    const std::int32_t* ids;
    const float* bias;
    int listed, blockBytes;
};

/// Attends with 16 query heads to the 32 tokens of a stage from `first` on. A warp calls this. Tokens belong to lanes
/// as in attention.cu, channels as channelOf says. newest: the block of the position, which is bf16. kMixed: some lanes
/// read it; otherwise all blocks are of kType.
template <int kDim, KvType kType, bool kMixed>
__device__ inline void attendTile(const StageBlocks& stage, int first, const DecodeAttentionArgs& a,
                                  const AttentionItem& item, const void* newest, const CodedParts& parts,
                                  const Queries<kDim>& queries, Accumulator<kDim>& acc) {
    static_assert(!kMixed || hasScales(kType));
    using Reader = CodedReader<kScaled<kType>>;
    [[maybe_unused]] const Reader reader{parts};
    const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
    const int shift = item.blockShift, within = (1 << shift) - 1;
    // The last stage of a list may have fewer blocks than others: absent ones are masked and read as its last block.
    const int keyGroup = first + 8 * (row / 2), mine = first + 8 * quad;
    const int keyEntry = min(keyGroup >> shift, stage.listed - 1), keyToken = (keyGroup & within) + row % 2;
    const int wanted = mine >> shift, entry = min(wanted, stage.listed - 1);
    const char* keyBlock = stage.blocks + keyEntry * stage.blockBytes;
    const char* valueBlock = stage.blocks + entry * stage.blockBytes;
    const char *keys = keyBlock, *values = valueBlock; // blocks that are bf16
    if constexpr (hasScales(kType)) keys = values = static_cast<const char*>(newest);
    keys += keyToken * kDim * 2;
    values += (kDim * 2 << shift) + (row * 2 << shift) + (mine & within) * 2;
    const int id = stage.ids[entry], firstToken = (id << shift) + (mine & within);

    float logits[4][4] = {};
    const auto multiplyKeys = [&](int c, const uint4(&k)[4]) {
        const uint4 q = queries.fragments[c][0][lane], next = queries.fragments[c][1][lane];
#pragma unroll
        for (int j = 0; j < 4; ++j) mma16816(logits[j], q.x, q.y, q.z, q.w, k[j].x, k[j].y);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma16816(logits[j], next.x, next.y, next.z, next.w, k[j].z, k[j].w);
    };
    const auto keyNumbers = [&](int j, int c) {
        return *reinterpret_cast<const uint4*>(keys + (2 * j * kDim + channelOf(c, quad)) * 2);
    };
    if constexpr (!hasScales(kType)) {
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            uint4 k[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) k[j] = keyNumbers(j, c);
            multiplyKeys(c, k);
        }
    } else {
        // Lanes of a warp may read blocks of both kinds; they meet again before a product.
        const bool coded = !kMixed || stage.ids[keyEntry] != item.position >> shift;
        const char* codes = keyBlock + Reader::bytesOf(keyToken * kDim + quad * 16);
#pragma unroll
        for (int pair = 0; pair < kDim / 64; ++pair) {
            TwoPieces<kType> both[4];
            if (coded)
#pragma unroll
                for (int j = 0; j < 4; ++j) both[j].read(codes + Reader::bytesOf(2 * j * kDim + pair * 64));
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int c = 2 * pair + e;
                uint4 k[4];
                if (coded) {
                    EightScales<kType> scales;
                    reader.keyScales(scales, keyBlock, keyToken, channelOf(c, quad));
#pragma unroll
                    for (int j = 0; j < 4; ++j) k[j] = numbersOf<kType>(both[j].eight[e], scales);
                } else {
#pragma unroll
                    for (int j = 0; j < 4; ++j) k[j] = keyNumbers(j, c);
                }
                if constexpr (kMixed) __syncwarp();
                multiplyKeys(c, k);
            }
        }
    }
    const float scale = a.scale * kLog2e;
    const unsigned reach = reachOf(a.window);
    const bool whole = wanted < stage.listed && unsigned(item.position - firstToken) < reach &&
                       unsigned(item.position - firstToken - 7) < reach;
    if (!item.biased && __all_sync(0xffffffffu, whole)) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) logits[j][e] *= scale;
    } else {
        const float biasScale = a.bias.scale * kLog2e;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool valid = wanted < stage.listed && unsigned(item.position - firstToken - 2 * j - e) < reach;
                const float bias = item.biased ? biasScale * stage.bias[mine + 2 * j + e] : 0.f;
                logits[j][e] = valid ? logits[j][e] * scale + bias : -INFINITY;
                logits[j][e + 2] = valid ? logits[j][e + 2] * scale + bias : -INFINITY;
            }
    }
    std::uint32_t p[4][2];
    takeLogits<kDim>(logits, acc, p);

    const auto multiplyValue = [&](int i, const uint4& v) {
        mma16816(acc.out[i], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
        mma16816(acc.out[i], p[2][0], p[2][1], p[3][0], p[3][1], v.z, v.w);
    };
    const auto valueNumbers = [&](int i) { return *reinterpret_cast<const uint4*>(values + (i * 16 << shift)); };
    if constexpr (!hasScales(kType)) {
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) multiplyValue(i, valueNumbers(i));
    } else {
        constexpr int kAtOnce = 4;
        static_assert(KvFormat::kValueGroup % (kAtOnce * 8) == 0);
        const bool coded = !kMixed || id != item.position >> shift;
        const char* codes = valueBlock + parts.values + Reader::bytesOf((row << shift) + (mine & within));
        EightScales<kType> scales;
#pragma unroll
        for (int first8 = 0; first8 < kDim / 8; first8 += kAtOnce) {
            uint4 v[kAtOnce];
            if (coded) {
                if (first8 == 0 || (kType == KvType::INT4 && first8 * 8 % KvFormat::kValueGroup == 0))
                    reader.valueScales(scales, valueBlock, mine & within, first8 * 8);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i)
                    v[i] = numbersOf<kType>(Reader::codes(codes + Reader::bytesOf((first8 + i) * 8 << shift)), scales);
            } else {
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) v[i] = valueNumbers(first8 + i);
            }
            if constexpr (kMixed) __syncwarp();
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) multiplyValue(first8 + i, v[i]);
        }
    }
}

/// Loads the stages [first, end) of an item into the ring. One warp calls this. newest: the block of the position,
/// which goes into a room of its own where the others are coded; newests: so many have gone there.
template <int kDim, KvType kType, class Ring, class Turn>
__device__ inline void fillStages(Ring& ring, Turn& turn, const DecodeAttentionArgs& a, const AttentionItem& item,
                                  int first, int end, int blockBytes, ListedBlocks blocks, const Bf16* newest,
                                  unsigned& newests) {
    const int lane = threadIdx.x % kWarp, shift = item.blockShift, perStage = kStageTokens >> shift;
    const int biasBytes = item.biased ? 4 << shift : 0;
    for (int s = first; s < end; ++s) {
        const int inRead = (s - first) % (kWarp / perStage);
        if (inRead == 0 && !(blocks.right && s == first)) { // reads the next 32 entries, one in each lane
            const int next = s * perStage + lane;
            blocks.read(a, item.firstListed + std::size_t(min(next, item.mostEntries - 1)), item.firstBlock + next);
        }
        const int count = min(perStage, item.entries - s * perStage), entry = inRead * perStage + lane % perStage;
        const int myId = __shfl_sync(0xffffffffu, blocks.id, entry),
                  place = __shfl_sync(0xffffffffu, blocks.place, entry);
        const char* from = reinterpret_cast<const char*>(a.blocks) + std::size_t(item.headFirst + place) * blockBytes;
        char* to = reinterpret_cast<char*>(ring.blocks[turn.stage]) + lane * blockBytes;
        int bytes = blockBytes, all = max(count, 0) * blockBytes;
        if (turn.round > 0) waitFor(ring.empty[turn.stage], turn.round - 1 & 1);
        if constexpr (hasScales(kType)) {
            const bool mine = lane < count && myId == item.position >> shift;
            if (mine) {
                from = reinterpret_cast<const char*>(newest);
                to = reinterpret_cast<char*>(ring.newest.block), bytes = kDim * 4 << shift;
            }
            if (__any_sync(0xffffffffu, mine)) {
                if (newests > 0) waitFor(ring.newestEmpty, newests - 1 & 1);
                ++newests, all += (kDim * 4 << shift) - blockBytes;
            }
        }
        keepIds(ring.ids[turn.stage], myId);
        if (lane == 0) ring.listed[turn.stage] = count;
        if (lane == 0) expectBytes(ring.full[turn.stage], unsigned(all + max(count, 0) * biasBytes));
        __syncwarp();
        if (lane < count) bulkLoad(to, from, unsigned(bytes), ring.full[turn.stage]);
        if (item.biased && lane < count)
            bulkLoad(&ring.bias[turn.stage][lane << shift],
                     a.bias.scores + item.biasFirst + (std::int64_t(myId) << shift), unsigned(biasBytes),
                     ring.full[turn.stage]);
        turn.advance();
    }
}

/// Attends to a warp's stages of an item, one of every kStagesAtOnce, and there to its tile.
template <int kDim, KvType kType, class Ring, class Turn>
__device__ inline void attendStages(Ring& ring, Turn& turn, const DecodeAttentionArgs& a, const AttentionItem& item,
                                    int stages, int blockBytes, const CodedParts& parts, Accumulator<kDim>& acc) {
    const int warp = threadIdx.x / kWarp, first = warp % kTilesPerStage * kTile;
    ring.queries.load(a, item);
    for (int s = 0; s < stages; ++s, turn.advance()) {
        if (turn.stage % kStagesAtOnce != warp / kTilesPerStage) continue;
        waitFor(ring.full[turn.stage], turn.round & 1);
        const StageBlocks stage{reinterpret_cast<const char*>(ring.blocks[turn.stage]), ring.ids[turn.stage],
                                ring.bias[turn.stage], ring.listed[turn.stage], blockBytes};
        if (stage.listed > 0) {
            if constexpr (hasScales(kType)) {
                // Lists ascend, so that the newest block is the last one of its stage.
                const int last = stage.listed - 1;
                const bool ends = stage.ids[last] == item.position >> item.blockShift;
                if (ends && last <= (first + kTile - 1) >> item.blockShift)
                    attendTile<kDim, kType, true>(stage, first, a, item, ring.newest.block, parts, ring.queries, acc);
                else
                    attendTile<kDim, kType, false>(stage, first, a, item, nullptr, parts, ring.queries, acc);
                if (ends) arrive(ring.newestEmpty);
            } else {
                attendTile<kDim, kType, false>(stage, first, a, item, nullptr, parts, ring.queries, acc);
            }
        }
        arrive(ring.empty[turn.stage]); // every lane arrives: a lane's arrival orders only its own reads
    }
    constexpr float kLn2 = 0.6931471805599453f;
    acc.maximum[0] *= kLn2, acc.maximum[1] *= kLn2; // the merge takes logarithms to base e
}

/// Half of the warps that compute hand what they have accumulated to the other half, eight query heads at a time. All
/// of them call this.
template <int kDim> __device__ inline void handOver(HandOver<kDim>& memory, Accumulator<kDim>& acc) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, taker = warp % kRingWarps;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (warp >= kRingWarps) {
            memory.state[taker][lane] = make_float2(acc.maximum[h], acc.sum[h]);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                memory.out[taker][i][lane] = make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
        }
        joinNamed<2>(kWarps * kWarp);
        if (warp < kRingWarps) {
            const float2 theirs = memory.state[taker][lane];
            const float next = fmaxf(acc.maximum[h], theirs.x), reference = next == -INFINITY ? 0.f : next;
            const float keep = exp2f((acc.maximum[h] - reference) * kLog2e),
                        take = exp2f((theirs.x - reference) * kLog2e);
            acc.sum[h] = acc.sum[h] * keep + theirs.y * take;
            acc.maximum[h] = next;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                const float2 other = memory.out[taker][i][lane];
                acc.out[i][2 * h] = acc.out[i][2 * h] * keep + other.x * take;
                acc.out[i][2 * h + 1] = acc.out[i][2 * h + 1] * keep + other.y * take;
            }
        }
        joinNamed<2>(kWarps * kWarp); // they have been read: the next ones may take their place
    }
}

#endif

/// Grid: thread blocks with an even share of all items' stages, see attention_share.cuh. kType: of the blocks before
/// the newest one. Only blocks that are not bf16 need `parts`.
template <int kDim, KvType kType>
__global__ void __launch_bounds__(kThreads, 1) codedKernel(DecodeAttentionArgs a, SharePlan plan, CodedParts parts) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint4 raw[];
    using Ring = CodedRing<kDim, kType>;
    auto& ring = *reinterpret_cast<Ring*>(raw);
    const int warp = threadIdx.x / kWarp;
    letNextKernelStart();
    if (threadIdx.x == 0) {
        for (int i = 0; i < Ring::kRing; ++i)
            initBarrier(ring.full[i], 1), initBarrier(ring.empty[i], kTilesPerStage * kWarp);
        initBarrier(ring.newestEmpty, kTilesPerStage * kWarp);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    Share share(a, plan);
    if (warp == kWarps) prefetchShare(a, plan, share, kDim);
    __syncthreads();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);

    ListedBlocks ahead;
    if (warp == kWarps) ahead = readAhead(a, plan, share);
    if (!share.settle()) ahead.right = false;
    RingTurn<Ring::kRing> turn;
    const int blockBytes = hasScales(kType) ? parts.bytes : kDim * 4 << plan.blockShift;
    if (warp >= kWarps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        keepRegisters<kLoadingRegisters>();
#endif
        if (warp > kWarps) return;
        // Earlier kernels may have written blocks with ordinary stores, which bulk copies would not see without a
        // fence.
        asm volatile("fence.proxy.async;" ::: "memory");
        unsigned newests = 0;
        while (share.left > 0) {
            const AttentionItem item(a, plan, share.cell);
            const int stages = min(share.left, item.stages - share.first);
            const Bf16* newest = nullptr;
            if constexpr (hasScales(kType))
                newest = a.newest + (std::size_t(share.cell / plan.headTiles) * kDim * 2 << plan.blockShift);
            fillStages<kDim, kType>(ring, turn, a, item, share.first, share.first + stages, blockBytes, ahead, newest,
                                    newests);
            ahead.right = false;
            share.next(stages);
        }
        return;
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    takeRegisters<kComputingRegisters>();
#endif
    while (share.left > 0) {
        const AttentionItem item(a, plan, share.cell);
        const int stages = min(share.left, item.stages - share.first);
        Accumulator<kDim> acc;
        acc.clear();
        attendStages<kDim, kType>(ring, turn, a, item, stages, blockBytes, parts, acc);
        handOver<kDim>(ring.handOver, acc);
        if (warp < kRingWarps) mergeItem<kDim>(ring.merge, a, item, share.parts(item), acc);
        share.next(stages);
    }
#endif
}

template <int kDim> void launchCoded(const Launch& how, const DecodeAttentionArgs& args) {
    const SharePlan plan = planShares(how, args.shape, args.rows, args.maxBlocks);
    withBlockType(args, [&](auto type) {
        constexpr KvType kType = decltype(type)::value;
        const auto kernel = codedKernel<kDim, kType>;
        constexpr std::size_t kShared = sizeof(CodedRing<kDim, kType>);
        static_assert(kShared <= 227 << 10);
        allowShared(kernel, kShared, "preparing the attention");
        launch(how, {dim3(unsigned(plan.blocks)), dim3(kThreads), kShared}, kernel, "attending", args, plan,
               hasScales(kType) ? CodedParts(args.format) : CodedParts());
    });
}

template <int kDim> constexpr std::size_t mostShared() {
    return std::max({sizeof(CodedRing<kDim, KvType::BF16>), sizeof(CodedRing<kDim, KvType::INT8>),
                     sizeof(CodedRing<kDim, KvType::INT4>)});
}

} // namespace

bool codedAttentionFits(const Launch& how, const AttentionShape& shape) {
    return how.clusters && (shape.dim == 64 ? mostShared<64>() : mostShared<128>()) <= how.blockShared &&
           shape.blockSize <= kStageTokens && kStageTokens % shape.blockSize == 0;
}

void codedAttention(const Launch& how, const DecodeAttentionArgs& args) {
    args.shape.dim == 64 ? launchCoded<64>(how, args) : launchCoded<128>(how, args);
}

} // namespace kvscope::cuda
