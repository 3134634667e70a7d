// Scores of blocks: products with pooled keys and a softmax over them, or bounds from key ranges, or given scores.
// Every rank of a cluster takes a run of blocks and sends their scores to rank 0.
#pragma once

#include "kernels/cuda/choice/select_plan.cuh"
#include "kernels/cuda/token/rotation.cuh"

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

/// The pair of a guessed query that this thread rotates. The angles are known before the wait.
template <int kDim> struct GuessedPair {
    static constexpr int kHalf = kDim / 2;
    float cos = 0, sin = 0;
    __device__ static bool mine(const SelectArgs& a) {
        return a.guess.projected != nullptr && int(threadIdx.x) < kHalf;
    }
    __device__ void locate(const SelectArgs& a, const SelectItem& at) {
        if (!mine(a)) return;
        const std::int64_t angle = std::int64_t(a.guess.ropeFirst[at.row] + at.position) * kHalf + int(threadIdx.x);
        cos = a.guess.cos[angle], sin = a.guess.sin[angle];
    }
    /// Writes the item's query to `to`. Ends with a barrier.
    __device__ void rotate(const SelectArgs& a, const SelectItem& at, Bf16* to) const {
        if (mine(a)) {
            const float* from = a.guess.projected + std::size_t(at.item) * kDim;
            const Pair pair(a.guess.interleaved, int(threadIdx.x), kHalf);
            rotatePair(pair, from[pair.low], from[pair.high], cos, sin, to);
        }
        __syncthreads();
    }
};

/// Scales the logits of a unit; windows from `end` on get -inf. mine: the lane's first window.
template <int kTiles> __device__ void limitUnit(float (&logits)[kTiles][4], int mine, int end, float factor) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) logits[t][e] = mine + t * 8 + e % 2 < end ? logits[t][e] * factor : -INFINITY;
}

/// Replaces the logits of a unit by exponentials less the unit's maximum. best: that maximum for the lane's two heads.
/// total: the sum of the lane's own exponentials, of windows from `owned` on.
template <int kTiles>
__device__ void exponentiateUnit(float (&logits)[kTiles][4], int mine, int owned, float (&best)[2], float (&total)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        best[h] = -INFINITY, total[h] = 0;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) best[h] = fmaxf(best[h], fmaxf(logits[t][2 * h], logits[t][2 * h + 1]));
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2)
            best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], offset));
        const float reference = best[h] == -INFINITY ? 0.f : best[h];
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float& x = logits[t][2 * h + e];
                x = exponential2(x - reference);
                total[h] += mine + t * 8 + e >= owned ? x : 0.f;
            }
    }
}

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
            float best[2], total[2];
            limitUnit(logits, mine, range.end, factor);
            float* out = to.exponentials + (headBase + row) * stride + (mine - range.begin);
            if (product) {
#pragma unroll
                for (int t = 0; t < Keys::kTiles; ++t)
                    if (row == 0) *reinterpret_cast<float2*>(out + t * 8) = make_float2(logits[t][0], logits[t][1]);
                continue;
            }
            exponentiateUnit(logits, mine, range.owned, best, total);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int head = headBase + row + h * 8;
                if (head < group) {
#pragma unroll
                    for (int t = 0; t < Keys::kTiles; ++t)
                        *reinterpret_cast<float2*>(out + h * 8 * stride + t * 8) =
                            make_float2(logits[t][2 * h], logits[t][2 * h + 1]);
                    if (quad == 0) to.references[unit * group + head] = best[h];
                }
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
            if (quad == 0) small.warps[warp][head] = make_float2(maximum[h], sum[h]);
        }
    }
}

/// The exponentials of a rank's windows in registers: of at most kHeldHeads heads and Team::kHeldWindows windows. Of
/// more scoreWindows keeps them in shared memory.
template <int kDim, class Team> struct HeldScores {
    static constexpr int kTurns = Team::kHeldTurns, kTiles = kUnitWindows / 8;
    float e[kTurns][kTiles][4], best[kTurns][2];

    __device__ static int window(const RankWindows& range, int turn) {
        return range.begin + (turn * Team::kWarps + int(threadIdx.x) / kWarp) * kUnitWindows;
    }
    /// Writes each warp's maximum and sum over the windows from `owned` on.
    __device__ void score(const SelectArgs& a, const Bf16* q, const Bf16* keys, int group, const RankWindows& range,
                          UnitKeys<kDim>& unitKeys, SelectSmall<Team>& small) {
        static_assert(UnitKeys<kDim>::kKept);
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
        QueryFragment<kDim> query[UnitKeys<kDim>::kChunks];
#pragma unroll
        for (int c = 0; c < UnitKeys<kDim>::kChunks; ++c) query[c].load(q, c, 0, group);
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
            best[turn][0] = best[turn][1] = -INFINITY;
#pragma unroll
            for (int t = 0; t < kTiles; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) e[turn][t][i] = 0;
            const int first = window(range, turn);
            if (first >= range.end) continue;
#pragma unroll
            for (int c = 0; c < UnitKeys<kDim>::kChunks; ++c)
#pragma unroll
                for (int t = 0; t < kTiles; ++t) query[c].multiply(e[turn][t], unitKeys.k[t][c]);
            if (turn + 1 < kTurns && window(range, turn + 1) < range.end)
                unitKeys.load(keys, window(range, turn + 1), range.end);
            float total[2];
            limitUnit(e[turn], first + quad * 2, range.end, a.scale * kLog2e);
            exponentiateUnit(e[turn], first + quad * 2, range.owned, best[turn], total);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (turn == 0) {
                    maximum[h] = best[turn][h], sum[h] = total[h];
                } else if (best[turn][h] != -INFINITY) {
                    const float both = fmaxf(maximum[h], best[turn][h]);
                    sum[h] = sum[h] * exponential2(maximum[h] - both) + total[h] * exponential2(best[turn][h] - both);
                    maximum[h] = both;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) { // the maximum is the same in the four lanes of a row
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], offset);
            if (quad == 0 && row + h * 8 < group) small.warps[warp][row + h * 8] = make_float2(maximum[h], sum[h]);
        }
    }
    /// Writes every window's softmax, added up over the heads, once the maxima and sums of all ranks are here.
    __device__ void addUp(int group, int ranks, const RankWindows& range, const SelectSmall<Team>& small,
                          float* sums) const {
        const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
        if (window(range, 0) >= range.end) return; // the whole warp
        float scale[kTurns][2];
#pragma unroll
        for (int h = 0; h < 2; ++h) { // the four lanes of a row share the ranks
            float2 each[kSelectCluster / 4];
            float maximum = -INFINITY, sum = 0;
#pragma unroll
            for (int n = 0; n < kSelectCluster / 4; ++n) {
                const int r = n * 4 + quad, head = row + h * 8;
                each[n] = r < ranks && head < group ? small.ranks[r][head] : make_float2(-INFINITY, 0.f);
                maximum = fmaxf(maximum, each[n].x);
            }
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2)
                maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, offset));
            const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
            for (int n = 0; n < kSelectCluster / 4; ++n) sum += each[n].y * exponential2(each[n].x - reference);
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            const float share = sum > 0 ? __fdividef(1.f, sum) : 0.f;
#pragma unroll
            for (int turn = 0; turn < kTurns; ++turn) scale[turn][h] = exponential2(best[turn][h] - reference) * share;
        }
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
            const int first = window(range, turn);
            if (first >= range.end) break;
            float sum[kTiles][2];
#pragma unroll
            for (int t = 0; t < kTiles; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    sum[t][i] = e[turn][t][i] * scale[turn][0] + e[turn][t][2 + i] * scale[turn][1];
#pragma unroll
            for (int offset = 4; offset < kWarp; offset *= 2)
#pragma unroll
                for (int t = 0; t < kTiles; ++t)
#pragma unroll
                    for (int i = 0; i < 2; ++i) sum[t][i] += __shfl_xor_sync(0xffffffffu, sum[t][i], offset);
#pragma unroll
            for (int t = 0; t < kTiles; ++t)
                if (row == t)
                    *reinterpret_cast<float2*>(sums + (first - range.begin) + t * 8 + quad * 2) =
                        make_float2(sum[t][0], sum[t][1]);
        }
    }
};

/// Sends the maximum and sum of every head over all warps to all ranks. Begins with a barrier.
template <class Team, class Cluster>
__device__ void sendSums(const Cluster& cluster, int group, Divider byGroup, SelectSmall<Team>& small) {
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < group * ranks; i += Team::kThreads) {
        const int to = byGroup(i), head = i - to * group;
        float2 each[Team::kWarps];
        float maximum = -INFINITY, sum = 0;
#pragma unroll
        for (int w = 0; w < Team::kWarps; ++w) {
            each[w] = small.warps[w][head];
            maximum = fmaxf(maximum, each[w].x);
        }
        const float reference = maximum == -INFINITY ? 0.f : maximum;
#pragma unroll
        for (int w = 0; w < Team::kWarps; ++w) sum += each[w].y * exponential2(each[w].x - reference);
        *cluster.map_shared_rank(&small.ranks[rank][head], to) = make_float2(maximum, sum);
    }
}

/// Adds up over the heads of the group every window's softmax; the sums take the place of the first head's
/// exponentials. Called once the maxima and sums of all ranks are here. Ends with a barrier.
template <class Team>
__device__ void sumOverGroup(int ranks, int group, Divider byGroup, const RankWindows& range, const SelectShared& to,
                             int stride, const SelectSmall<Team>& small) {
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
/// block, and its first lane calls send(block, bound).
template <int kDim, class Team, class Send>
__device__ void boundRanges(const SelectArgs& a, const Bf16* q, int group, int head, const RankWindows& range,
                            float* queries, const Send& send) {
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
        if (lane == 0) send(b, total);
    }
}

} // namespace kvscope::cuda
