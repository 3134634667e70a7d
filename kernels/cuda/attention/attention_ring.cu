#include "kernels/cuda/attention/attention_ring.h"

#include "kernels/cuda/attention/block_maps.h"
#include "kernels/cuda/attention/share_merge.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kSlice = kStageTokens / kRingWarps; // tokens of a stage that a warp attends to; all of one KV block
[[maybe_unused]] constexpr int kRowBytes = 128;   // 64 channels of a key: a row of a stage

/// Keys: [dim / 64][64 tokens][64 channels]; values: [block][dim][blockSize]. Pieces are permuted, see block_maps.h.
template <int kDim> struct Stage { alignas(1024) char bytes[kStageTokens * kDim * 2]; };

/// A ring of stages, keys and values in turns.
template <int kDim, int kRing> struct Ring {
    Stage<kDim> stages[kRing];
    alignas(16) float bias[kRing][kStageTokens]; // comes with a stage of keys, as the block ids do
    MergeMemory<kDim> merge;
    std::int32_t ids[kRing][kStageTokens / kSlice], listed[kRing];
    std::uint64_t full[kRing], empty[kRing];
};

#if __CUDA_ARCH__ >= 900

__device__ inline void loadTiles(std::uint32_t (&tiles)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
                 : "r"(row)
                 : "memory");
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
    if (warp == kRingWarps) {
        prefetchShare(a, plan, share, kDim);
        if (threadIdx.x % kWarp == 0) prefetchMap(maps.keys);
        if (threadIdx.x % kWarp == 1) prefetchMap(maps.values);
    }
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
            mergeItem<kDim>(ring.merge, a, item, share.parts(item), acc);
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
