// Scores of blocks: products with pooled keys and a softmax over them, or bounds from key ranges, or given scores.
// Every rank of a cluster takes a run of blocks and sends their scores to rank 0.
#pragma once

#include "kernels/cuda/choice/select_plan.cuh"

namespace kvscope::cuda {

/// A rank's share of the blocks, and the pooling windows that overlap them.
struct RankWindows {
    int firstBlock, endBlock; // the rank's blocks
    int windows;              // complete windows of the whole sequence
    int begin, end, owned;    // the rank's windows; those below `owned` overlap the rank before's blocks too and count
                              // in that rank's sums
};

class WindowGrid {
public:
    __device__ WindowGrid(const SelectArgs& a, const SelectPlan& plan)
        : kernel_(a.index.kernel), stride_(a.index.stride), block_(a.shape.blockSize), byStride_(plan.byStride) {}
    __device__ int windows(int tokens) const { return tokens < kernel_ ? 0 : byStride_(tokens - kernel_) + 1; }
    /// first: the first window that overlaps a block. end: the first window after those that overlap it.
    __device__ int first(int block) const {
        const int token = block * block_;
        return token < kernel_ ? 0 : byStride_(token - kernel_) + 1;
    }
    __device__ int end(int block, int windows) const {
        return min(byStride_((block + 1) * block_ + stride_ - 1), windows);
    }
    /// A rank's share of the blocks that the query sees. Windows that end before the first token that the query sees
    /// belong to no rank. Windows that begin before the first block and overlap it count in the first rank's sums.
    __device__ RankWindows of(const SelectItem& at, int windows, int rank, int perRank) const {
        RankWindows r;
        const int blocks = at.blocks, hidden = max(0, at.firstToken - kernel_ + 1);
        r.firstBlock = min(at.firstBlock + rank * perRank, blocks);
        r.endBlock = min(r.firstBlock + perRank, blocks);
        r.windows = windows;
        const bool any = r.firstBlock < r.endBlock;
        r.begin = any ? min(max(first(r.firstBlock), byStride_(hidden + stride_ - 1)), windows) : 0;
        r.end = any ? max(r.begin, end(r.endBlock - 1, windows)) : 0;
        r.owned = rank == 0 ? r.begin : byStride_(r.firstBlock * block_ + stride_ - 1);
        return r;
    }

private:
    int kernel_, stride_, block_;
    Divider byStride_;
};

/// The pooled keys of a unit of windows, in the lanes of a warp. As they come from memory they are fragments of the
/// tensor cores.
template <int kDim> struct UnitKeys {
    static constexpr int kTiles = kUnitWindows / 8, kChunks = kDim / 32;
    static constexpr bool kKept = kDim <= 128; // registers hold keys and queries; wider ones are read as they are used
    uint4 k[kTiles][kKept ? kChunks : 1];
    __device__ void load(const Bf16* keys, int window, int end) {
        const int lane = threadIdx.x % kWarp;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const Bf16* from = keys + std::size_t(min(window + t * 8 + lane / 4, end - 1)) * kDim + lane % 4 * 8;
#pragma unroll
            for (int c = 0; c < kChunks && kKept; ++c) k[t][c] = loadOnce(from + c * 32);
        }
    }
};

__device__ inline float exponential2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// The queries of the 16 heads from headBase on, as fragments.
template <int kDim> struct QueryFragment {
    std::uint32_t f[2][4];
    __device__ void load(const Bf16* q, int chunk, int headBase, int group) {
        const int lane = threadIdx.x % kWarp, row = headBase + lane / 4, column = chunk * 32 + lane % 4 * 8;
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        if (row < group) low = *reinterpret_cast<const uint4*>(q + row * kDim + column);
        if (row + 8 < group) high = *reinterpret_cast<const uint4*>(q + (row + 8) * kDim + column);
        f[0][0] = low.x, f[0][1] = high.x, f[0][2] = low.y, f[0][3] = high.y;
        f[1][0] = low.z, f[1][1] = high.z, f[1][2] = low.w, f[1][3] = high.w;
    }
    __device__ void multiply(float (&logits)[4], const uint4& k) const {
        mma16816(logits, f[0][0], f[0][1], f[0][2], f[0][3], k.x, k.y);
        mma16816(logits, f[1][0], f[1][1], f[1][2], f[1][3], k.z, k.w);
    }
};

/// Scores a rank's windows. Writes to `exponentials` [group][stride] the exponential of each logit less the maximum of
/// its unit and head, and that maximum to `references` [unit][group]. Also writes each warp's maximum and sum over the
/// windows from `owned` on. With Score::PooledProduct `exponentials` gets the products themselves.
template <int kDim, class Team>
__device__ void scoreWindows(const SelectArgs& a, const Bf16* q, const Bf16* keys, int group, const RankWindows& range,
                             UnitKeys<kDim>& unitKeys, const SelectShared& to, int stride, SelectSmall<Team>& small) {
    using Keys = UnitKeys<kDim>;
    constexpr bool kKept = Keys::kKept;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const bool product = a.score == SelectArgs::Score::PooledProduct;
    const float factor = product ? 1.f : a.scale * kLog2e; // logits are in units of log2
#pragma unroll 1
    for (int headBase = 0; headBase < group; headBase += 16) {
        QueryFragment<kDim> query[kKept ? Keys::kChunks : 1];
        if constexpr (kKept) {
#pragma unroll
            for (int c = 0; c < Keys::kChunks; ++c) query[c].load(q, c, headBase, group);
        }
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
        int unit = warp, window = range.begin + warp * kUnitWindows;
        constexpr int kStep = Team::kWarps * kUnitWindows;
        if (kKept && headBase > 0 && window < range.end) unitKeys.load(keys, window, range.end);
#pragma unroll 1
        for (; window < range.end; window += kStep, unit += Team::kWarps) {
            float logits[Keys::kTiles][4] = {};
            if constexpr (kKept) {
#pragma unroll
                for (int c = 0; c < Keys::kChunks; ++c)
#pragma unroll
                    for (int t = 0; t < Keys::kTiles; ++t) query[c].multiply(logits[t], unitKeys.k[t][c]);
                if (window + kStep < range.end) unitKeys.load(keys, window + kStep, range.end);
            } else {
#pragma unroll 3
                for (int c = 0; c < Keys::kChunks; ++c) {
                    query[0].load(q, c, headBase, group);
#pragma unroll
                    for (int t = 0; t < Keys::kTiles; ++t) {
                        const int at = min(window + t * 8 + row, range.end - 1);
                        query[0].multiply(logits[t], loadOnce(keys + std::size_t(at) * kDim + c * 32 + quad * 8));
                    }
                }
            }
            const int mine = window + quad * 2; // this lane's first window
            float best[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
#pragma unroll
            for (int t = 0; t < Keys::kTiles; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    logits[t][e] = mine + t * 8 + e % 2 < range.end ? logits[t][e] * factor : -INFINITY;
                    best[e / 2] = fmaxf(best[e / 2], logits[t][e]);
                }
            float* out = to.exponentials + (headBase + row) * stride + (mine - range.begin);
            if (product) {
#pragma unroll
                for (int t = 0; t < Keys::kTiles; ++t)
                    if (row == 0) *reinterpret_cast<float2*>(out + t * 8) = make_float2(logits[t][0], logits[t][1]);
                continue;
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int offset = 1; offset < 4; offset *= 2)
                    best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], offset));
                const float reference = best[h] == -INFINITY ? 0.f : best[h];
                const int head = headBase + row + h * 8;
#pragma unroll
                for (int t = 0; t < Keys::kTiles; ++t) {
                    const float2 value = make_float2(exponential2(logits[t][2 * h] - reference),
                                                     exponential2(logits[t][2 * h + 1] - reference));
                    if (head < group) *reinterpret_cast<float2*>(out + h * 8 * stride + t * 8) = value;
                    total[h] += (mine + t * 8 >= range.owned ? value.x : 0.f) +
                                (mine + t * 8 + 1 >= range.owned ? value.y : 0.f);
                }
                if (quad == 0 && head < group) to.references[unit * group + head] = best[h];
                if (best[h] == -INFINITY) continue;
                const float both = fmaxf(maximum[h], best[h]);
                sum[h] = sum[h] * exponential2(maximum[h] - both) + total[h] * exponential2(best[h] - both);
                maximum[h] = both;
            }
        }
        if (product) continue;
#pragma unroll
        for (int h = 0; h < 2; ++h) { // the maximum is the same in the four lanes of a row
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], offset);
            const int head = headBase + row + h * 8;
            if (quad == 0) small.warps[head][warp] = make_float2(maximum[h], sum[h]);
        }
    }
}

/// Adds up over the heads of the group every window's softmax; the sums take the place of the first head's
/// exponentials. The ranks send each other their maxima and sums, call meanwhile(), and then wait for each other.
/// Begins and ends with a barrier.
template <class Team, class Cluster, class Meanwhile>
__device__ void sumOverGroup(const Cluster& cluster, int group, Divider byGroup, const RankWindows& range,
                             const SelectShared& to, int stride, SelectSmall<Team>& small, const Meanwhile& meanwhile) {
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    __syncthreads();
    // Of a head, each of neighbouring threads takes the maximum and sum of one warp.
    const int share = int(threadIdx.x) % Team::kWarps, warp = int(threadIdx.x) / kWarp;
    constexpr int kHeadsPerWarp = kWarp / Team::kWarps;
#pragma unroll 1
    for (int first = warp * kHeadsPerWarp; first < group; first += kWarp) {
        const int head = first + int(threadIdx.x) % kWarp / Team::kWarps;
        const float2 mine = small.warps[head][share];
        float maximum = mine.x;
#pragma unroll
        for (int offset = 1; offset < Team::kWarps; offset *= 2)
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
        float sum = mine.y * exponential2(mine.x - (maximum == -INFINITY ? 0.f : maximum));
#pragma unroll
        for (int offset = 1; offset < Team::kWarps; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
#pragma unroll
        for (int r = share; r < kSelectCluster; r += Team::kWarps)
            if (r < ranks && head < group)
                *cluster.map_shared_rank(&small.ranks[rank][head], r) = make_float2(maximum, sum);
    }
    cluster.barrier_arrive();
    meanwhile();
    cluster.barrier_wait();
    const int windows = range.end - range.begin, scales = (windows + kUnitWindows - 1) / kUnitWindows * group;
#pragma unroll 1
    for (int i = threadIdx.x; i < scales; i += Team::kThreads) { // every thread adds up the sum by itself: no barrier
        const int head = i - byGroup(i) * group;
        float2 each[kSelectCluster];
        float maximum = -INFINITY, sum = 0;
#pragma unroll
        for (int r = 0; r < kSelectCluster; ++r) {
            each[r] = r < ranks ? small.ranks[r][head] : make_float2(-INFINITY, 0.f);
            maximum = fmaxf(maximum, each[r].x);
        }
        const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
        for (int r = 0; r < kSelectCluster; ++r) sum += each[r].y * exponential2(each[r].x - reference);
        const float logSum = sum > 0 ? maximum + __log2f(sum) : 0.f; // base 2
        to.references[i] = exponential2(to.references[i] - logSum);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < windows; i += Team::kThreads) {
        const float* unitScales = to.references + i / kUnitWindows * group;
        float sum = 0;
#pragma unroll 8
        for (int h = 0; h < group; ++h) sum += to.exponentials[h * stride + i] * unitScales[h];
        to.exponentials[i] = sum;
    }
    __syncthreads();
}

/// A block's query-agnostic score: the largest of its windows' pooled scores. The constructor asks for the first ones;
/// largest() uses them when they are needed.
class AgnosticScore {
public:
    __device__ AgnosticScore(const float* scores, int first, int end) : scores_(scores), first_(first), end_(end) {
#pragma unroll
        for (int i = 0; i < kAsked; ++i) asked_[i] = first + i < end ? scores[first + i] : -INFINITY;
    }
    __device__ float largest() const {
        float best = -INFINITY;
#pragma unroll
        for (int i = 0; i < kAsked; ++i) best = fmaxf(best, asked_[i]); // NaN loses
#pragma unroll 1
        for (int i = first_ + kAsked; i < end_; ++i) best = fmaxf(best, scores_[i]);
        return best;
    }

private:
    static constexpr int kAsked = 6;
    const float* scores_;
    int first_, end_;
    float asked_[kAsked];
};

/// For every block, the upper bounds of q.k that follow from its key range, over the heads of the group. A warp takes a
/// block.
template <int kDim, class Team>
__device__ void boundRanges(const SelectArgs& a, const Bf16* q, int group, int head, const RankWindows& range,
                            float* queries, float* awareAtRank0) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll 1
    for (int i = threadIdx.x; i < group * kDim; i += Team::kThreads) queries[i] = __bfloat162float(q[i]);
    __syncthreads();
    constexpr int kMine = kDim / kWarp;
#pragma unroll 1
    for (int b = range.firstBlock + warp; b < range.endBlock; b += Team::kWarps) {
        const Bf16* bounds = a.index.ranges + std::size_t(a.index.blockFirst[head] + b) * 2 * kDim;
        float low[kMine], high[kMine];
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            low[i] = __bfloat162float(bounds[lane + i * kWarp]);
            high[i] = __bfloat162float(bounds[kDim + lane + i * kWarp]);
        }
        float total = a.rangeReduce == GroupReduce::Sum ? 0.f : -INFINITY;
        for (int h = 0; h < group; ++h) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
                const float value = queries[h * kDim + lane + i * kWarp];
                sum += fmaxf(value * low[i], value * high[i]);
            }
            sum = warpSum(sum);
            total = a.rangeReduce == GroupReduce::Sum ? total + sum : fmaxf(total, sum);
        }
        if (lane == 0) awareAtRank0[b] = total;
    }
}

} // namespace kvscope::cuda
