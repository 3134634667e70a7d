#include "kernels/cuda/attention/attention_ring.h"

#include "kernels/cuda/attention/attention_parts.cuh"
#include "kernels/cuda/attention/attention_share.cuh"
#include "kernels/cuda/attention/block_maps.h"
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kSlice = 16;                        // tokens of a stage that a warp attends to; all of one KV block
constexpr int kRingWarps = kStageTokens / kSlice; // warps that compute; one more warp loads
constexpr int kComputing = kRingWarps * kWarp, kRingThreads = kComputing + kWarp;
[[maybe_unused]] constexpr int kRowBytes = 128; // 64 channels of a key: a row of a stage

constexpr int kMerging = kRingWarps / 2; // so many warps take in the results of as many others

/// Keys: [dim / 64][64 tokens][64 channels]; values: [block][dim][blockSize]. Pieces are permuted, see block_maps.h.
template <int kDim> struct Stage { alignas(1024) char bytes[kStageTokens * kDim * 2]; };

/// A ring of stages, keys and values in turns.
template <int kDim, int kRing> struct Ring {
    Stage<kDim> stages[kRing];
    alignas(16) float bias[kRing][kStageTokens];      // comes with a stage of keys, as the block ids do
    alignas(16) float values[kMerging][kHeads][kDim]; // results of warps on their way into the merge
    float maxima[kRingWarps][kHeads], sums[kRingWarps][kHeads];
    std::int32_t ids[kRing][kStageTokens / kSlice], listed[kRing];
    std::uint64_t full[kRing], empty[kRing];
    bool last; // whether this thread block's part of an item has arrived after all others
};

#if __CUDA_ARCH__ >= 900

/// Which stage comes next, and how often it has been used.
template <int kRing> struct RingTurn {
    int stage = 0;
    unsigned round = 0;
    __device__ void advance() {
        if (++stage == kRing) stage = 0, ++round;
    }
};

__device__ inline void loadTiles(std::uint32_t (&tiles)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(row)
                 : "memory");
}

/// A barrier of the warps that compute. The warp that loads does not take part.
__device__ inline void joinComputing() { asm volatile("bar.sync 1, %0;" ::"n"(kComputing) : "memory"); }

/// 32 entries of a list, one in each lane.
struct ListedBlocks {
    std::int32_t id = 0, place = 0;
    bool right = false; // whether the entries that were read ahead are the ones that are needed
    __device__ void read(const DecodeAttentionArgs& a, std::size_t at, int entry) {
        id = a.list.block != nullptr ? a.list.block[at] : entry;
        place = a.list.slot != nullptr ? a.list.slot[at] : id;
    }
};

/// Reads the first entries of the share while the lists' lengths are on their way from memory, as if all lists were
/// full, as most are. Called after the wait.
__device__ inline ListedBlocks readAhead(const DecodeAttentionArgs& a, const SharePlan& plan, const Share& full) {
    ListedBlocks blocks;
    if (a.list.count == nullptr || a.list.first != nullptr) return blocks;
    const int item = full.cell / plan.headTiles;
    const int entry = full.first * (kStageTokens >> plan.blockShift) + int(threadIdx.x) % kWarp;
    blocks.read(a, std::size_t(item) * a.list.capacity + min(entry, a.list.capacity - 1), entry);
    blocks.right = true;
    return blocks;
}

/// Loads the stages [first, end) of an item into the ring. One warp calls this: it waits until a stage has been read
/// and asks for bulk copies into it, which need neither registers nor threads while they are under way.
template <int kDim, int kRing>
__device__ inline void fillRing(Ring<kDim, kRing>& ring, RingTurn<kRing>& turn, const DecodeAttentionArgs& a,
                                const AttentionItem& item, int first, int end, const BlockMaps& maps,
                                ListedBlocks blocks) {
    const int lane = threadIdx.x % kWarp, perStage = kStageTokens >> item.blockShift;
    const int halfBytes = kDim * 2 << item.blockShift, biasBytes = item.biased ? 4 << item.blockShift : 0;
    for (int s = first; s < end; ++s) {
        const int within = (s - first) % (kWarp / perStage);
        if (within == 0 && !(blocks.right && s == first)) { // reads the next 32 entries, one in each lane
            const int next = s * perStage + lane;
            blocks.read(a, item.firstListed + std::size_t(min(next, item.mostEntries - 1)), item.firstBlock + next);
        }
        const int count = min(perStage, item.entries - s * perStage), entry = within * perStage + lane % perStage;
        const int myId = __shfl_sync(0xffffffffu, blocks.id, entry),
                  block = int(item.headFirst) + __shfl_sync(0xffffffffu, blocks.place, entry);
        if (turn.round > 0) waitFor(ring.empty[turn.stage], turn.round - 1 & 1);
        keepIds(ring.ids[turn.stage], myId);
        if (lane == 0) ring.listed[turn.stage] = count;
        if (lane == 0) expectBytes(ring.full[turn.stage], unsigned(max(count, 0) * (halfBytes + biasBytes)));
        __syncwarp();
        if (lane < count) {
            char* to = ring.stages[turn.stage].bytes + (lane * kRowBytes << item.blockShift);
#pragma unroll
            for (int piece = 0; piece < kDim / 64; ++piece)
                boxLoad(to + piece * kStageTokens * kRowBytes, maps.keys, 0, 0, piece, block, ring.full[turn.stage]);
            if (item.biased)
                bulkLoad(&ring.bias[turn.stage][lane << item.blockShift],
                         a.bias.scores + item.biasFirst + (std::int64_t(myId) << item.blockShift), unsigned(biasBytes),
                         ring.full[turn.stage]);
        }
        turn.advance();
        if (turn.round > 0) waitFor(ring.empty[turn.stage], turn.round - 1 & 1);
        if (lane == 0) expectBytes(ring.full[turn.stage], unsigned(max(count, 0) * halfBytes));
        __syncwarp();
        if (lane < count)
            boxLoad(ring.stages[turn.stage].bytes + lane * halfBytes, maps.values, 0, 0, block, ring.full[turn.stage]);
        turn.advance();
    }
}

/// Query heads as tensor-core fragments, [16 channels][fragment].
template <int kDim>
__device__ inline void loadFragments(const DecodeAttentionArgs& a, const AttentionItem& item,
                                     std::uint32_t (&q)[kDim / 16][4]) {
    const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
    const Bf16* from = a.q + item.firstQueryHead * kDim;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int head = row + e % 2 * 8, channel = k * 16 + quad * 2 + e / 2 * 8;
            q[k][e] = head < item.heads ? *reinterpret_cast<const std::uint32_t*>(from + head * kDim + channel) : 0u;
        }
}

/// Attends to a warp's 16 tokens of every stage. The warp reads a stage into registers before it multiplies, so that
/// the stage can be filled again long before the products are done.
template <int kDim, int kRing>
__device__ inline void attendRing(Ring<kDim, kRing>& ring, RingTurn<kRing>& turn, const DecodeAttentionArgs& a,
                                  const AttentionItem& item, int stages, Accumulator<kDim>& acc) {
    const int lane = threadIdx.x % kWarp, quad = lane % 4, firstToken = int(threadIdx.x / kWarp) * kSlice;
    const int slice = firstToken >> item.blockShift, inBlock = firstToken & ((1 << item.blockShift) - 1);
    // Lane l gives the address of row l % 8 of tile l / 8. Keys: the tiles are 4 neighbouring 16-byte pieces of the
    // rows of 8 tokens.
    const int keyRow = (firstToken + lane % 8) * kRowBytes;
    // Values: the tiles are tokens 0 to 7 and 8 to 15 of 8 channels, then the same of the next 8 channels.
    const int valueBytes = 2 << item.blockShift, channelRow = (lane / 16 * 8 + lane % 8) * valueBytes;
    const int valuePiece = (inBlock / 8 + lane / 8 % 2) ^ (channelRow >> 7 & (valueBytes / 16 - 1));
    const unsigned reach = reachOf(a.window);
    std::uint32_t q[kDim / 16][4];
    loadFragments<kDim>(a, item, q);
    for (int s = 0; s < stages; ++s) {
        waitFor(ring.full[turn.stage], turn.round & 1);
        // The last stage of a list may have fewer blocks than others: absent ones are masked and read as the first.
        const int listed = ring.listed[turn.stage];
        const bool present = slice < listed;
        const int first = (ring.ids[turn.stage][present ? slice : 0] << item.blockShift) + inBlock;
        float2 bias[2] = {};
        if (item.biased)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                bias[j] = *reinterpret_cast<const float2*>(&ring.bias[turn.stage][firstToken + j * 8 + quad * 2]);
        const unsigned keys = sharedAddress(ring.stages[turn.stage].bytes) + unsigned(keyRow);
        std::uint32_t k[2][kDim / 32][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c)
                loadTiles(k[j][c], keys + unsigned(j * 8 * kRowBytes + c / 2 * kStageTokens * kRowBytes +
                                                   ((c % 2 * 4 + lane / 8) ^ (lane % 8)) * 16));
        arrive(ring.empty[turn.stage]); // every lane arrives: a lane's arrival orders only its own reads
        turn.advance();

        float sums[2][2][4] = {}; // two independent chains of products for each 8 tokens
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c)
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const auto& heads = q[2 * c + half];
                    mma16816(sums[j][half], heads[0], heads[1], heads[2], heads[3], k[j][c][2 * half],
                             k[j][c][2 * half + 1]);
                }
        float logits[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int token = first + j * 8 + quad * 2 + e % 2;
                const bool valid = present && unsigned(item.position - token) < reach;
                const float add = a.bias.scale * (e % 2 == 0 ? bias[j].x : bias[j].y);
                logits[j][e] = valid ? (sums[j][0][e] + sums[j][1][e]) * a.scale + add : -INFINITY;
            }
        std::uint32_t p[2][2];
        advanceSoftmax<kDim, 2>(logits, acc, p);

        waitFor(ring.full[turn.stage], turn.round & 1);
        const unsigned values = sharedAddress(ring.stages[turn.stage].bytes) +
                                unsigned((present ? slice : 0) * kDim * valueBytes + channelRow + valuePiece * 16);
        std::uint32_t v[kDim / 16][4];
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) loadTiles(v[i], values + unsigned(i * 16 * valueBytes));
        arrive(ring.empty[turn.stage]);
        turn.advance();
        if (listed <= 0) continue; // nothing was loaded: the stage may hold numbers that are not finite
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) {
            mma16816(acc.out[2 * i], p[0][0], p[0][1], p[1][0], p[1][1], v[i][0], v[i][1]);
            mma16816(acc.out[2 * i + 1], p[0][0], p[0][1], p[1][0], p[1][1], v[i][2], v[i][3]);
        }
    }
}

/// A thread's part of a head's result, every 8th piece of 4 channels, and the head's maximum and sum.
template <int kDim> struct HeadPart {
    static constexpr int kPieces = kDim / 32;
    float4 out[kPieces];
    float maximum, sum;

    __device__ void clear() {
        for (float4& piece : out) piece = make_float4(0, 0, 0, 0);
        maximum = -INFINITY, sum = 0;
    }
    __device__ void add(const float4 (&piece)[kPieces], float theirMaximum, float theirSum) {
        const float next = fmaxf(maximum, theirMaximum), reference = next == -INFINITY ? 0.f : next;
        const float keep = exp2f((maximum - reference) * kLog2e), take = exp2f((theirMaximum - reference) * kLog2e);
        sum = sum * keep + theirSum * take;
        maximum = next;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
            out[i].x = out[i].x * keep + piece[i].x * take, out[i].y = out[i].y * keep + piece[i].y * take;
            out[i].z = out[i].z * keep + piece[i].z * take, out[i].w = out[i].w * keep + piece[i].w * take;
        }
    }
};

/// Merges what the warps have accumulated of an item and writes the item's result. A thread block that has only a part
/// of the item leaves its part in memory; the last of the item's thread blocks to arrive merges all parts.
template <int kDim, int kRing>
__device__ inline void mergeItem(Ring<kDim, kRing>& ring, const DecodeAttentionArgs& a, const AttentionItem& item,
                                 const ItemParts& parts, Accumulator<kDim>& acc) {
    constexpr int kPieces = HeadPart<kDim>::kPieces;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    // Half of the warps hand their fragments to the other half, lane by lane.
    auto* fragments = reinterpret_cast<float2*>(ring.values[warp % kMerging]) + lane;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        if (warp < kMerging) continue;
        if (quad == 0) ring.maxima[warp][row + 8 * h] = acc.maximum[h], ring.sums[warp][row + 8 * h] = acc.sum[h];
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
            fragments[(h * kDim / 8 + i) * kWarp] = make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
    }
    joinComputing();
    // Within 32 floats, neighbouring heads' channels are shifted by 8 floats, so that they lie in different banks.
    const auto placeOf = [](int head, int channel) { return channel ^ (head % 4 * 8); };
    if (warp < kMerging) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float theirs = ring.maxima[warp + kMerging][row + 8 * h], next = fmaxf(acc.maximum[h], theirs),
                        reference = next == -INFINITY ? 0.f : next;
            const float keep = exp2f((acc.maximum[h] - reference) * kLog2e),
                        take = exp2f((theirs - reference) * kLog2e);
            acc.sum[h] = acc.sum[h] * keep + ring.sums[warp + kMerging][row + 8 * h] * take;
            acc.maximum[h] = next;
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
                const float2 other = fragments[(h * kDim / 8 + i) * kWarp];
                acc.out[i][2 * h] = acc.out[i][2 * h] * keep + other.x * take;
                acc.out[i][2 * h + 1] = acc.out[i][2 * h + 1] * keep + other.y * take;
            }
        }
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (quad == 0) ring.maxima[warp][row + 8 * h] = acc.maximum[h], ring.sums[warp][row + 8 * h] = acc.sum[h];
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                *reinterpret_cast<float2*>(&ring.values[warp][row + 8 * h][placeOf(row, i * 8 + quad * 2)]) =
                    make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
        }
    }
    joinComputing();
    const int h = int(threadIdx.x) / 8, first = int(threadIdx.x) % 8 * 4; // 4 of every 32 channels of head h
    HeadPart<kDim> mine;
    mine.clear();
#pragma unroll
    for (int w = 0; w < kMerging; ++w) {
        float4 pieces[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
            pieces[i] = *reinterpret_cast<const float4*>(&ring.values[w][h][placeOf(h, i * 32 + first)]);
        mine.add(pieces, ring.maxima[w][h], ring.sums[w][h]);
    }
    if (parts.count > 1) {
        float* to = a.scratch.partial + std::size_t(parts.mine) * kPartFloats(kDim);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) *reinterpret_cast<float4*>(to + h * kDim + i * 32 + first) = mine.out[i];
        if (first == 0) *reinterpret_cast<float2*>(to + kHeads * kDim + 2 * h) = make_float2(mine.maximum, mine.sum);
        __threadfence();
        joinComputing();
        if (threadIdx.x == 0) {
            std::uint32_t* arrivals = a.scratch.arrivals + item.cell * kCluster;
            ring.last = atomicAdd(arrivals, 1u) + 1 == unsigned(parts.count);
            if (ring.last) *arrivals = 0;
        }
        joinComputing();
        if (!ring.last) return;
        __threadfence();
        mine.clear();
        constexpr int kAtOnce = 6; // parts whose loads are under way together
        for (int i = 0; i < parts.count; i += kAtOnce) {
            float2 states[kAtOnce];
            float4 pieces[kAtOnce][kPieces];
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) {
                const float* from =
                    a.scratch.partial + std::size_t(parts.at(min(i + u, parts.count - 1))) * kPartFloats(kDim);
                states[u] = __ldcg(reinterpret_cast<const float2*>(from + kHeads * kDim + 2 * h));
                if (i + u >= parts.count) states[u] = make_float2(-INFINITY, 0.f);
#pragma unroll
                for (int p = 0; p < kPieces; ++p)
                    pieces[u][p] = __ldcg(reinterpret_cast<const float4*>(from + h * kDim + p * 32 + first));
            }
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) mine.add(pieces[u], states[u].x, states[u].y);
        }
    } else {
        joinComputing(); // ring.values have been read: the next item's results may take their place
    }
    if (h >= item.heads) return;
    const float inverse = mine.sum > 0 ? 1.f / mine.sum : 0.f;
    Bf16* out = a.out + (item.firstQueryHead + h) * kDim;
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
        *reinterpret_cast<uint2*>(out + i * 32 + first) =
            make_uint2(packBf16(mine.out[i].x * inverse, mine.out[i].y * inverse),
                       packBf16(mine.out[i].z * inverse, mine.out[i].w * inverse));
    if (first == 0 && a.logSums != nullptr) a.logSums[item.firstQueryHead + h] = mine.maximum + logf(mine.sum);
}

#endif

#if __CUDA_ARCH__ >= 900

/// Brings what the loading warp reads first after the wait into the L2 cache. Called before the wait.
__device__ inline void prefetchShare(const DecodeAttentionArgs& a, const SharePlan& plan, const Share& full,
                                     const BlockMaps& maps, int dim) {
    constexpr int kLine = 128;
    const int lane = threadIdx.x % kWarp, item = full.cell / plan.headTiles;
    const std::size_t listed = std::size_t(item) * a.list.capacity;
    if (lane * kLine < a.list.capacity * 4) {
        if (a.list.block != nullptr) prefetchLine(a.list.block + listed + lane * kLine / 4);
        if (a.list.slot != nullptr) prefetchLine(a.list.slot + listed + lane * kLine / 4);
    }
    if (a.list.count != nullptr && lane * kLine < plan.cells / plan.headTiles * 4)
        prefetchLine(a.list.count + lane * kLine / 4);
    const int heads = a.shape.queryHeads / a.shape.kvHeads; // query heads of a KV head
    for (int at = lane * kLine; at < heads * dim * 2; at += kWarp * kLine)
        prefetchLine(a.q + std::size_t(item) * heads * dim + at / 2);
    if (lane == 0) prefetchMap(maps.keys);
    if (lane == 1) prefetchMap(maps.values);
}

#endif

/// Grid: a thread block for each multiprocessor, with an even share of all items' stages, see attention_share.cuh.
template <int kDim, int kRing>
__global__ void __launch_bounds__(kRingThreads, 2)
    ringKernel(DecodeAttentionArgs a, SharePlan plan, const __grid_constant__ BlockMaps maps) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char raw[];
    auto& ring = *reinterpret_cast<Ring<kDim, kRing>*>(raw);
    const int warp = threadIdx.x / kWarp;
    letNextKernelStart();
    if (threadIdx.x == 0) {
        for (int i = 0; i < kRing; ++i) initBarrier(ring.full[i], 1), initBarrier(ring.empty[i], kComputing);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    Share share(a, plan);
    if (warp == kRingWarps) prefetchShare(a, plan, share, maps, kDim);
    __syncthreads();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);

    ListedBlocks ahead;
    if (warp == kRingWarps) ahead = readAhead(a, plan, share);
    if (!share.settle()) ahead.right = false;
    RingTurn<kRing> turn;
    // Earlier kernels may have written blocks with ordinary stores, which bulk copies would not see without a fence.
    if (warp == kRingWarps) asm volatile("fence.proxy.async;" ::: "memory");
    while (share.left > 0) {
        const AttentionItem item(a, plan, share.cell);
        const int stages = min(share.left, item.stages - share.first);
        if (warp == kRingWarps) {
            fillRing<kDim, kRing>(ring, turn, a, item, share.first, share.first + stages, maps, ahead);
            ahead.right = false;
        } else {
            Accumulator<kDim> acc;
            acc.clear();
            attendRing<kDim, kRing>(ring, turn, a, item, stages, acc);
            mergeItem<kDim, kRing>(ring, a, item, share.parts(item), acc);
        }
        share.next(stages);
    }
#endif
}

template <int kDim, int kRing> void launchRing(const Launch& how, const DecodeAttentionArgs& args) {
    const SharePlan plan = planShares(how, args.shape, args.rows, args.maxBlocks);
    allowShared(ringKernel<kDim, kRing>, sizeof(Ring<kDim, kRing>), "preparing the attention");
    leaveCache(ringKernel<kDim, kRing>, "preparing the attention");
    launch(how, {dim3(unsigned(plan.blocks)), dim3(kRingThreads), sizeof(Ring<kDim, kRing>)}, ringKernel<kDim, kRing>,
           "attending", args, plan, blockMaps(args.shape, args.blocks));
}

} // namespace

bool ringAttentionFits(const Launch& how, const AttentionShape& shape) {
    const std::size_t ring = shape.dim == 64 ? sizeof(Ring<64, 8>) : sizeof(Ring<128, 4>);
    return how.clusters && ring <= how.blockShared && shape.blockSize <= kStageTokens &&
           kStageTokens % shape.blockSize == 0;
}

std::size_t ringPartialFloats(const Launch& how, const AttentionShape& shape, int rows, int maxBlocks) {
    return std::size_t(planShares(how, shape, rows, maxBlocks).mostBlocks) * 2 * kPartFloats(shape.dim);
}

void ringAttention(const Launch& how, const DecodeAttentionArgs& args) {
    args.shape.dim == 64 ? launchRing<64, 8>(how, args) : launchRing<128, 4>(how, args);
}

} // namespace kvscope::cuda
