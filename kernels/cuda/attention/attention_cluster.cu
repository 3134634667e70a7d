#include "kernels/cuda/attention/attention_cluster.h"

#include "kernels/cuda/attention/attention_parts.cuh"
#include "kernels/cuda/device/bulk_copy.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kStageTokens = 64; // a stage of the ring: one KV block, or several smaller ones
/// Most stages of all items together that isShort calls short. On the H200 16 stages take 6.6 us here and 9.0 us in
/// ringAttention, 128 stages 10.2 and 9.5 us.
constexpr int kMostStages = 64;
constexpr int kComputingWarps = 4; // warps that compute; one more warp loads
constexpr int kClusterThreads = (kComputingWarps + 1) * kWarp;
[[maybe_unused]] constexpr int kTilesPerStage = kStageTokens / kTile;
constexpr int kMostBlocks = kStageTokens / 16; // per stage

/// The results of a thread block's warps. They take the place of the stages when all stages have been read.
template <int kDim> struct WarpParts {
    alignas(16) float out[kComputingWarps][kHeads][kDim];
    float2 state[kComputingWarps][kHeads]; // maximum, sum
};
/// What the thread blocks of a cluster send to the one that writes a head: their results for its heads.
template <int kDim> struct Inbox {
    alignas(16) float out[kHeads][kDim];
    float2 state[kHeads];
};

/// A ring of kRing stages, 96 KiB.
template <int kDim, int kRing> struct Ring {
    uint4 blocks[kRing][kStageTokens * kDim * 4 / 16];
    alignas(16) float bias[kRing][kStageTokens];
    std::int32_t ids[kRing][kMostBlocks], listed[kRing];
    std::uint64_t full[kRing], empty[kRing];
    Inbox<kDim> inbox; // not in the place of stages: others may send before this thread block has read its last stage
};

#if __CUDA_ARCH__ >= 900

/// Attends with 16 query heads to 32 tokens of a stage. A warp calls this. Tokens and channels belong to lanes as in
/// attention.cu.
template <int kDim, int kRing>
__device__ inline void attendStage(const Ring<kDim, kRing>& ring, int stage, int first, const DecodeAttentionArgs& a,
                                   int blockShift, bool biased, int position, const std::uint32_t (&q)[kDim / 32][2][4],
                                   Accumulator<kDim>& acc) {
    const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
    const int within = (1 << blockShift) - 1, listed = ring.listed[stage];
    const int blockBytes = kDim * 4 << blockShift;
    const char* blocks = reinterpret_cast<const char*>(ring.blocks[stage]);
    // The last stage of a list may have fewer blocks than others: absent ones are masked and read as its last block.
    const int keyGroup = first + 8 * (row / 2), mine = first + 8 * quad;
    const char* keys = blocks + min(keyGroup >> blockShift, listed - 1) * blockBytes + (keyGroup & within) * kDim * 2 +
                       (row % 2) * kDim * 2 + quad * 16;
    const int wanted = mine >> blockShift, entry = min(wanted, listed - 1);
    const char* values =
        blocks + entry * blockBytes + (kDim * 2 << blockShift) + (row * 2 << blockShift) + (mine & within) * 2;
    const int firstToken = (ring.ids[stage][entry] << blockShift) + (mine & within);
    const unsigned reach = reachOf(a.window);

    float logits[4][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < kDim / 32; ++c) {
            const uint4 k = *reinterpret_cast<const uint4*>(keys + 2 * j * kDim * 2 + c * 64);
            mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], k.x, k.y);
            mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], k.z, k.w);
        }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const bool valid = wanted < listed && unsigned(position - firstToken - 2 * j - e) < reach;
            const float bias = biased ? a.bias.scale * ring.bias[stage][mine + 2 * j + e] : 0.f;
            logits[j][e] = valid ? logits[j][e] * a.scale + bias : -INFINITY;
            logits[j][e + 2] = valid ? logits[j][e + 2] * a.scale + bias : -INFINITY;
        }
    std::uint32_t p[4][2];
    advanceSoftmax<kDim, 4>(logits, acc, p);
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
        const uint4 v = *reinterpret_cast<const uint4*>(values + (i * 16 << blockShift));
        mma16816(acc.out[i], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
        mma16816(acc.out[i], p[2][0], p[2][1], p[3][0], p[3][1], v.z, v.w);
    }
}

/// The weight of a result in a merge whose largest maximum is `reference`.
__device__ inline float weightOf(float maximum, float reference) { return exp2f((maximum - reference) * kLog2e); }
__device__ inline float finiteOr0(float maximum) { return maximum == -INFINITY ? 0.f : maximum; }

/// Merges the warps' results, sends each head's result to the thread block of the cluster that writes that head, and
/// merges and writes this thread block's heads. No thread block reads from another, so that one barrier of the cluster
/// is enough after sending. All threads call this.
template <int kDim>
__device__ inline void mergeBySending(const DecodeAttentionArgs& a, const DecodePlace& place, Accumulator<kDim>& acc,
                                      WarpParts<kDim>& parts, Inbox<kDim>& inbox) {
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, rowInTile = lane / 4, quad = lane % 4;
    if (warp < kComputingWarps) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
            acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
            if (quad == 0) parts.state[warp][rowInTile + 8 * h] = make_float2(acc.maximum[h], acc.sum[h]);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i)
                *reinterpret_cast<float2*>(&parts.out[warp][rowInTile + 8 * h][i * 8 + quad * 2]) =
                    make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
        }
    }
    __syncthreads();
    const int perRank = (kHeads + ranks - 1) / ranks;
    cluster.barrier_wait(); // all thread blocks of the cluster have begun
    for (int at = threadIdx.x; at < kHeads * kDim / 4; at += kClusterThreads) {
        const int h = at / (kDim / 4), c = at % (kDim / 4) * 4;
        if (h >= place.heads) break;
        float maximum = -INFINITY, sum = 0;
#pragma unroll
        for (int w = 0; w < kComputingWarps; ++w) maximum = fmaxf(maximum, parts.state[w][h].x);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kComputingWarps; ++w) {
            const float2 state = parts.state[w][h];
            const float factor = weightOf(state.x, finiteOr0(maximum));
            const float4 value = *reinterpret_cast<const float4*>(&parts.out[w][h][c]);
            sum += factor * state.y;
            out.x += factor * value.x, out.y += factor * value.y, out.z += factor * value.z, out.w += factor * value.w;
        }
        auto* to = cluster.map_shared_rank(&inbox, h / perRank);
        const int entry = rank * perRank + h % perRank;
        *reinterpret_cast<float4*>(&to->out[entry][c]) = out;
        if (c == 0) to->state[entry] = make_float2(maximum, sum);
    }
    cluster.sync();

    Bf16* outRow = a.out + place.firstQueryHead * kDim;
    for (int at = threadIdx.x; at < perRank * (kDim / 2); at += kClusterThreads) {
        const int within = at / (kDim / 2), h = rank * perRank + within, c = at % (kDim / 2) * 2;
        if (h >= place.heads) break;
        float maximum = -INFINITY, sum = 0;
        float2 out = make_float2(0, 0);
        for (int r = 0; r < ranks; ++r) maximum = fmaxf(maximum, inbox.state[r * perRank + within].x);
        for (int r = 0; r < ranks; ++r) {
            const float2 state = inbox.state[r * perRank + within];
            const float2 value = *reinterpret_cast<const float2*>(&inbox.out[r * perRank + within][c]);
            const float factor = weightOf(state.x, finiteOr0(maximum));
            sum += factor * state.y;
            out.x += factor * value.x, out.y += factor * value.y;
        }
        const float inverse = sum > 0 ? 1.f / sum : 0.f;
        *reinterpret_cast<std::uint32_t*>(outRow + h * kDim + c) = packBf16(out.x * inverse, out.y * inverse);
        if (c == 0 && a.logSums != nullptr) a.logSums[place.firstQueryHead + h] = maximum + logf(sum);
    }
}

#endif

/// With so few registers a quarter of a multiprocessor has room for two more warps of a projection.
constexpr int kClusterRegisters = 192;

/// Grid: (cluster, kvHeads, rows * head tiles). The last warp keeps a ring of stages full with bulk copies, which need
/// neither registers nor threads while they are under way. The other warps attend to the stages, two warps to a stage.
template <int kDim, int kRing>
__global__ void __maxnreg__(kClusterRegisters) clusterKernel(DecodeAttentionArgs a, DecodePlan plan, int blockShift) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint4 raw[];
    auto& ring = *reinterpret_cast<Ring<kDim, kRing>*>(raw);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const DecodePlace place(a.shape, plan);
    letNextKernelStart();
    thisCluster().barrier_arrive();
    if (threadIdx.x == 0) {
        for (int i = 0; i < kRing; ++i)
            initBarrier(ring.full[i], 1), initBarrier(ring.empty[i], kComputingWarps * kWarp);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // Positions change only at a step's end, so they may be read before the wait.
    const int sequence = a.oneSequence ? a.sequence : place.row;
    const int head = sequence * a.shape.kvHeads + place.g;
    int position =
        a.packedTokens == nullptr ? a.position[place.row] + (a.shift != nullptr ? a.shift[place.row] : 0) : 0;
    const bool active = a.active == nullptr || a.active[place.row] != 0;
    const bool biased = a.bias.scores != nullptr && a.bias.scale != 0.f;
    const std::int64_t headFirst = a.headFirst[head], biasFirst = biased ? a.bias.first[head] : 0;
    __syncthreads();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    if (!active) { // the whole cluster leaves
        thisCluster().barrier_wait();
        return;
    }
    if (a.packedTokens != nullptr) position = a.packedTokens[place.item] - 1;

    const int skipped = a.list.first != nullptr ? a.list.first[place.item] : 0;
    const int firstBlock = a.window > 0 && a.list.count == nullptr ? max(0, position + 1 - a.window) >> blockShift : 0;
    const int entries =
        a.list.count != nullptr ? a.list.count[place.item] - skipped : (position >> blockShift) + 1 - firstBlock;
    const int perStage = kStageTokens >> blockShift;
    const unsigned stages = unsigned(entries + perStage - 1) / unsigned(perStage), share = stages / gridDim.x,
                   extra = stages - share * gridDim.x;
    const int begin = int(blockIdx.x * share + min(blockIdx.x, extra)),
              end = begin + int(share + (blockIdx.x < extra ? 1 : 0));
    Accumulator<kDim> acc;
    acc.clear();
    if (warp == kComputingWarps) {
        asm volatile("fence.proxy.async;" ::: "memory"); // blocks may come from ordinary stores of earlier kernels
        const std::size_t listed = std::size_t(place.item) * a.list.capacity + skipped;
        const int slot = lane % perStage; // of a stage
        const int bytes = kDim * 4 << blockShift, biasBytes = biased ? 4 << blockShift : 0;
        std::int32_t id = 0, at = 0;
        for (int s = begin; s < end; ++s) {
            const int turn = s - begin, stage = turn % kRing, within = turn % (kWarp / perStage);
            if (within == 0) { // reads the next 32 entries, one in each lane
                const int entry = min(s * perStage + lane, entries - 1);
                id = a.list.block != nullptr ? a.list.block[listed + entry] : firstBlock + entry;
                at = a.list.slot != nullptr ? a.list.slot[listed + entry] : id;
            }
            const int count = min(perStage, entries - s * perStage);
            const int myId = __shfl_sync(0xffffffffu, id, within * perStage + slot),
                      myPlace = __shfl_sync(0xffffffffu, at, within * perStage + slot);
            if (turn >= kRing) waitFor(ring.empty[stage], unsigned(turn / kRing - 1) & 1);
            keepIds(ring.ids[stage], myId);
            if (lane == 0) ring.listed[stage] = count;
            if (lane == 0) expectBytes(ring.full[stage], unsigned(count * (bytes + biasBytes)));
            __syncwarp();
            if (lane < count) {
                char* to = reinterpret_cast<char*>(ring.blocks[stage]) + lane * bytes;
                bulkLoad(to, reinterpret_cast<const char*>(a.blocks) + std::size_t(headFirst + myPlace) * bytes,
                         unsigned(bytes), ring.full[stage]);
                if (biased)
                    bulkLoad(&ring.bias[stage][lane << blockShift],
                             a.bias.scores + biasFirst + (std::int64_t(myId) << blockShift), unsigned(biasBytes),
                             ring.full[stage]);
            }
        }
    } else {
        std::uint32_t q[kDim / 32][2][4];
        loadQueries<kDim>(a, place, q);
        // Every warp waits for every stage, in order, also for those that it does not attend to: a barrier can only
        // tell an even phase from an odd one.
        for (int s = begin; s < end; ++s) {
            const int turn = s - begin, stage = turn % kRing;
            waitFor(ring.full[stage], unsigned(turn / kRing) & 1);
            if (turn % (kComputingWarps / kTilesPerStage) == warp / kTilesPerStage)
                attendStage<kDim, kRing>(ring, stage, warp % kTilesPerStage * kTile, a, blockShift, biased, position, q,
                                         acc);
            arrive(ring.empty[stage]); // every lane arrives: a lane's arrival orders only its own reads
        }
    }
    __syncthreads(); // all stages have been loaded and read: the warps' results may take their place
    mergeBySending<kDim>(a, place, acc, *reinterpret_cast<WarpParts<kDim>*>(ring.blocks), ring.inbox);
#endif
}

/// (row, KV head, 16 of its query heads)
int itemsOf(const AttentionShape& shape, int rows) {
    return rows * shape.kvHeads * ((shape.group() + kHeads - 1) / kHeads);
}
int stagesOf(const AttentionShape& shape, int maxBlocks) {
    return std::max(1, (maxBlocks * shape.blockSize + kStageTokens - 1) / kStageTokens);
}

template <int kDim, int kRing> void launchClusters(const Launch& how, const DecodeAttentionArgs& args) {
    static_assert(sizeof(WarpParts<kDim>) <= sizeof(Ring<kDim, kRing>::blocks));
    const int stages = stagesOf(args.shape, args.maxBlocks), items = itemsOf(args.shape, args.rows);
    int cluster = 1; // no more thread blocks in all than multiprocessors
    while (cluster * 2 <= std::min(stages, kCluster) && items * cluster * 2 <= how.multiprocessors) cluster *= 2;
    const int headTiles = (args.shape.group() + kHeads - 1) / kHeads;
    const DecodePlan plan{args.shape.group(), headTiles, Divider(args.shape.blockSize)};
    int blockShift = 0;
    while (1 << blockShift < args.shape.blockSize) ++blockShift;
    allowShared(clusterKernel<kDim, kRing>, sizeof(Ring<kDim, kRing>), "preparing the attention");
    leaveCache(clusterKernel<kDim, kRing>, "preparing the attention");
    launch(how,
           {dim3(unsigned(cluster), unsigned(args.shape.kvHeads), unsigned(args.rows * headTiles)),
            dim3(kClusterThreads), sizeof(Ring<kDim, kRing>), unsigned(cluster)},
           clusterKernel<kDim, kRing>, "attending", args, plan, blockShift);
}

} // namespace

bool isShort(const AttentionShape& shape, int rows, int maxBlocks) {
    return std::int64_t(itemsOf(shape, rows)) * stagesOf(shape, maxBlocks) <= kMostStages;
}

void clusterAttention(const Launch& how, const DecodeAttentionArgs& args) {
    args.shape.dim == 64 ? launchClusters<64, 6>(how, args) : launchClusters<128, 3>(how, args);
}

} // namespace kvscope::cuda
