// The phases of the attention over candidates (candidate_attention.h): which places a thread block has, their label
// scores through the tensor cores, the softmax over the cluster, the choice, and the attention over what was chosen.
#pragma once

#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/candidate_attention.h"
#include "kernels/cuda/labels.cuh"
#include "kernels/cuda/token_choice.cuh"

namespace kvscope::cuda {

constexpr int kCandidateThreads = 256, kCandidateWarps = kCandidateThreads / kWarp;
/// Places go to the thread blocks of a cluster in turn, this many at a time: what is chosen often lies together, and
/// every thread block attends to its own.
constexpr int kGroupPlaces = 16;
constexpr int kPadding = 8; // elements after a key or value in shared memory: rows meet different banks

/// What a launch fixes; offsets are bytes of shared memory from its start.
struct CandidatePlan {
    int rankShift = 0, groups = 0; // of a thread block
    int group = 1, stride = 0;     // query heads; floats of one's logits
    bool logitsHeld = true;        // in shared memory
    Divider byBlock;               // of groups
    unsigned tokens = 0, offsets = 0, better = 0, equal = 0, before = 0, equals = 0, list = 0, tiles = 0;
    std::size_t total = 0;

    CandidatePlan(const AttentionShape& shape, int capacity, int shift, bool held)
        : rankShift(shift), group(shape.group()), logitsHeld(held), byBlock(shape.blockSize / kGroupPlaces) {
        const int all = capacity * (shape.blockSize / kGroupPlaces), ranks = 1 << shift;
        groups = ((all + ranks - 1) / ranks + 1) / 2 * 2;
        stride = groups * kGroupPlaces + 8; // pairs of neighbouring heads' rows meet no bank twice
        const auto take = [&](std::size_t bytes) {
            const std::size_t here = total;
            total = (total + bytes + 127) / 128 * 128;
            return unsigned(here);
        };
        const auto mine = std::size_t(groups);
        tokens = take(mine * 4);
        offsets = take(mine * 4);
        better = take(mine * 2);
        equal = take(mine * 2);
        before = take(mine * 2);
        equals = take(std::size_t(all) * 2);
        list = take(mine * kGroupPlaces * 2);
        const std::size_t row = std::size_t(shape.dim + kPadding) * sizeof(Bf16);
        std::size_t bytes = std::size_t(kCandidateWarps * kGroupPlaces) * 2 * row; // keys and values; then the merge's
        if (const std::size_t logits = std::size_t(shape.group() * stride) * 4; held && logits > bytes) bytes = logits;
        tiles = take(bytes);
    }
};

struct CandidateShared {
    ThresholdShared<kCandidateThreads> threshold;
    union {
        Bf16 query[kMostGroup][kMostChannels]; // the labels' channels; rows of zeros to a whole tile of heads
        float merged[kHeads][kMostChannels]; // [rank][heads that this block merges], sent by the blocks of the cluster
    };
    float querySum[kMostGroup];
    std::int32_t channel[kMostChannels];
    float warpMaximum[kCandidateWarps][kMostGroup], warpSum[kCandidateWarps][kMostGroup];
    float2 ranks[kChoiceCluster][kMostGroup]; // maximum and sum of every block of the cluster
    float factor[kMostGroup];                 // what one of this block's exponentials is worth
    float warpMaxima[kCandidateWarps][kHeads], warpSums[kCandidateWarps][kHeads]; // of the attention
    float2 mergedSums[kHeads];                                                    // maximum and sum, like `merged`
    int total;
};

/// The places of one thread block of a cluster: groups rank, rank + ranks, .. of the list.
struct CandidatePart {
    int item, row, rank, ranks, shift, stride;
    int all = 0, count = 0, groups = 0, listedGroups = 0; // count: places up to the position, the first of the groups
    unsigned char* raw;
    const CandidatePlan& plan;
    float* logits; // [group][stride]

    __device__ CandidatePart(const CandidateAttentionArgs& a, const CandidatePlan& plan, int rank, int item, int row,
                             unsigned char* raw)
        : item(item), row(row), rank(rank), ranks(1 << plan.rankShift), shift(plan.rankShift), stride(plan.stride),
          raw(raw), plan(plan),
          logits(plan.logitsHeld ? reinterpret_cast<float*>(raw + plan.tiles)
                                 : a.logits + std::size_t(item * ranks + rank) * plan.group * stride) {}

    __device__ std::int32_t* tokens() const { return reinterpret_cast<std::int32_t*>(raw + plan.tokens); }
    __device__ std::int32_t* offsets() const { return reinterpret_cast<std::int32_t*>(raw + plan.offsets); }
    __device__ std::uint32_t* better() const { return reinterpret_cast<std::uint32_t*>(raw + plan.better); }
    __device__ std::uint32_t* equal() const { return reinterpret_cast<std::uint32_t*>(raw + plan.equal); }
    __device__ std::uint32_t* before() const { return reinterpret_cast<std::uint32_t*>(raw + plan.before); }
    __device__ std::uint16_t* equals() const { return reinterpret_cast<std::uint16_t*>(raw + plan.equals); }
    __device__ std::uint16_t* list() const { return reinterpret_cast<std::uint16_t*>(raw + plan.list); }
    __device__ unsigned char* tiles() const { return raw + plan.tiles; }
    __device__ std::uint32_t* ranksOfPlaces() const { return reinterpret_cast<std::uint32_t*>(logits); }
    /// Of the first `n` groups of the list, those that are this block's.
    __device__ int own(int n) const { return n > rank ? (n - rank + ranks - 1) >> shift : 0; }
    /// Where a group of this block stands in the list.
    __device__ int listed(int group) const { return group << shift | rank; }

    /// Reads the list. `early`: also asks for the labels, whose way from memory then hides behind earlier kernels.
    __device__ void read(const CandidateAttentionArgs& a, bool early) {
        const int bs = a.attend.shape.blockSize, dim = a.attend.shape.dim, perBlock = bs / kGroupPlaces;
        const std::size_t first = std::size_t(item) * a.attend.capacity;
        const int blocks = a.attend.listCount[item];
        all = blocks > 0 ? (blocks - 1) * bs + a.attend.position[row] % bs + 1 : 0;
        const int whole = all / kGroupPlaces;
        count = own(whole) * kGroupPlaces + ((whole & (ranks - 1)) == rank ? all % kGroupPlaces : 0);
        groups = (count + kGroupPlaces - 1) / kGroupPlaces;
        listedGroups = own(blocks * perBlock);
        const std::size_t labelled = std::size_t(item) * a.labels.stride;
        for (int i = threadIdx.x; i < groups; i += kCandidateThreads) {
            const int at = listed(i), entry = plan.byBlock(at), within = (at - entry * perBlock) * kGroupPlaces;
            const int block = a.attend.listBlock[first + entry], token = block * bs + within;
            const int slot = a.attend.listSlot != nullptr ? a.attend.listSlot[first + entry] : block;
            tokens()[i] = token;
            offsets()[i] = slot * 2 * bs * dim + within * dim;
            if (!early) continue;
            const auto ask = [](const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); };
            for (int w = 0; w < a.labels.words(); ++w)
                ask(a.labels.codes + labelled * a.labels.words() + std::size_t(w) * a.labels.stride + token);
            if (a.labels.bits == 4) ask(a.labels.steps + labelled + token), ask(a.labels.lowest + labelled + token);
        }
    }
};

/// The query's channels, the copy of it, and the newest token's label.
template <int kChunks>
__device__ void prepareQueries(CandidateShared& s, const CandidateAttentionArgs& a, const CandidatePart& part,
                               std::size_t firstQueryHead) {
    const int dim = a.attend.shape.dim, group = part.plan.group, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const Bf16* q = a.attend.q + firstQueryHead * dim;
    if (warp == kCandidateWarps - 1 && part.all > 0 && (part.all - 1) / kGroupPlaces % part.ranks == part.rank)
        writeLabelByWarp(a.labels, part.item, a.attend.position[part.row], a.newKey + std::size_t(part.item) * dim,
                         s.channel);
    for (int h = warp; h < (group + kHeads - 1) / kHeads * kHeads; h += kCandidateWarps) {
        float sum = 0;
#pragma unroll
        for (int c = lane; c < kChunks * 32; c += kWarp) {
            const Bf16 x =
                h < group && c < a.labels.channels ? q[std::size_t(h) * dim + s.channel[c]] : __float2bfloat16(0.f);
            s.query[h][c] = x;
            sum += __bfloat162float(x);
        }
        sum = warpSum(sum);
        if (lane == 0) s.querySum[h] = sum;
    }
    if (a.keptQ == nullptr || part.rank != 0) return;
    uint4* to = reinterpret_cast<uint4*>(a.keptQ + firstQueryHead * dim);
    for (int i = threadIdx.x; i < group * dim / 8; i += kCandidateThreads) to[i] = reinterpret_cast<const uint4*>(q)[i];
}

/// Four bits become bf16: of eight in a word, pair i is of channels i and i + 4.
__device__ inline std::uint32_t codePair(std::uint32_t word, int i) {
    // 128 + code has the code in its last bits.
    const std::uint32_t raised = (word >> (4 * i) & 0x000f000fu) | 0x43004300u, base = 0x43004300u;
    const __nv_bfloat162 code =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(raised), reinterpret_cast<const __nv_bfloat162&>(base));
    return reinterpret_cast<const std::uint32_t&>(code);
}

/// 16 queries over 8 labels: fragments of the tensor cores, 32 channels a chunk. Channels go to lanes as the labels'
/// words do, so that a lane needs only what it loads: a word of codes (8 channels), or four words of two bf16.
template <int kChunks, bool kCoded> struct LabelProduct {
    static constexpr int kWords = kCoded ? 1 : 4; // of a lane and chunk
    std::uint32_t query[kChunks][2][4];

    __device__ void load(const CandidateShared& s, int firstHead) {
        const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int part = 0; part < 4; ++part) { // rows row and row + 8 of one half of the depth, then the other
                    const Bf16* from = s.query[firstHead + row + part % 2 * 8] + c * 32;
                    const int low = kCoded ? quad * 8 + half * 2 + part / 2 : half * 16 + part / 2 * 8 + quad * 2;
                    const int high = low + (kCoded ? 4 : 1);
                    query[c][half][part] = std::uint32_t(__bfloat16_as_ushort(from[low])) |
                                           std::uint32_t(__bfloat16_as_ushort(from[high])) << 16;
                }
    }
    /// Words of the label of the lane's token, `stride` apart.
    __device__ static void read(std::uint32_t (&words)[kChunks][kWords], const std::uint32_t* codes,
                                std::int64_t stride, int count) {
        const int quad = threadIdx.x % 4;
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
#pragma unroll
            for (int i = 0; i < kWords; ++i) {
                const int w = (c * kWords + i) * 4 + quad;
                words[c][i] = w < count ? codes[std::size_t(w) * stride] : 0;
            }
    }
    __device__ void multiply(float (&sums)[4], const std::uint32_t (&words)[kChunks][kWords]) const {
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto& q = query[c][half];
                if constexpr (kCoded)
                    mma16816(sums, q[0], q[1], q[2], q[3], codePair(words[c][0], half * 2),
                             codePair(words[c][0], half * 2 + 1));
                else
                    mma16816(sums, q[0], q[1], q[2], q[3], words[c][half * 2], words[c][half * 2 + 1]);
            }
    }
};

/// What a lane needs of a group's labels.
template <int kChunks, bool kCoded> struct GroupLabels {
    using Product = LabelProduct<kChunks, kCoded>;
    std::uint32_t words[2][kChunks][Product::kWords]; // of eight tokens each
    float2 step[2], lowest[2];                        // of two tokens

    __device__ void load(const LabelStore& labels, std::size_t labelled, int token) {
        const int lane = threadIdx.x % kWarp, count = labels.words();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::uint32_t* codes = labels.codes + labelled * count + token + half * 8 + lane / 4;
            Product::read(words[half], codes, labels.stride, count);
            if constexpr (!kCoded) continue;
            const std::size_t at = labelled + token + half * 8 + lane % 4 * 2;
            step[half] = *reinterpret_cast<const float2*>(labels.steps + at);
            lowest[half] = *reinterpret_cast<const float2*>(labels.lowest + at);
        }
    }
};

/// Logits of this block's places, in units of log2, and each warp's maxima.
template <int kChunks, bool kCoded>
__device__ void scoreLabels(CandidateShared& s, const CandidateAttentionArgs& a, const CandidatePart& part) {
    constexpr int kTogether = kChunks > 1 ? 1 : kCoded ? 5 : 2; // groups whose labels are on their way at a time
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4,
              group = part.plan.group;
    const float scale = a.attend.scale * kLog2e;
    const std::size_t labelled = std::size_t(part.item) * a.labels.stride;
    for (int first = 0; first < group; first += kHeads) {
        LabelProduct<kChunks, kCoded> product;
        product.load(s, first);
        const float sums[2] = {s.querySum[first + row], s.querySum[first + row + 8]};
        float maxima[2] = {-INFINITY, -INFINITY};
        for (int base = warp; base < part.groups; base += kCandidateWarps * kTogether) {
            GroupLabels<kChunks, kCoded> labels[kTogether];
#pragma unroll
            for (int t = 0; t < kTogether; ++t)
                labels[t].load(a.labels, labelled, part.tokens()[min(base + t * kCandidateWarps, part.groups - 1)]);
#pragma unroll
            for (int t = 0; t < kTogether; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float logits[4] = {};
                    product.multiply(logits, labels[t].words[half]);
                    const int at = (base + t * kCandidateWarps) * kGroupPlaces + half * 8 + quad * 2;
                    if (base + t * kCandidateWarps >= part.groups) continue;
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float low = logits[2 * h], high = logits[2 * h + 1];
                        if constexpr (kCoded) {
                            low = low * labels[t].step[half].x + sums[h] * labels[t].lowest[half].x;
                            high = high * labels[t].step[half].y + sums[h] * labels[t].lowest[half].y;
                        }
                        low *= scale, high *= scale;
                        if (at < part.count) maxima[h] = fmaxf(maxima[h], low);
                        if (at + 1 < part.count) maxima[h] = fmaxf(maxima[h], high);
                        const int head = first + row + h * 8;
                        if (head < group)
                            *reinterpret_cast<float2*>(part.logits + head * part.stride + at) = make_float2(low, high);
                    }
                }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            maxima[h] = fmaxf(maxima[h], __shfl_xor_sync(0xffffffffu, maxima[h], 1));
            maxima[h] = fmaxf(maxima[h], __shfl_xor_sync(0xffffffffu, maxima[h], 2));
            if (quad == 0) s.warpMaximum[warp][first + row + h * 8] = maxima[h];
        }
    }
}

/// Logits become exponentials against this block's maximum, and `factor` what one of them is worth: the blocks tell
/// each other their maxima and sums. Ends with a barrier.
__device__ inline void softmaxOverCluster(CandidateShared& s, const CandidatePart& part) {
    const auto cluster = thisCluster();
    const int group = part.plan.group, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const auto maximumOf = [&](int h) {
        float maximum = -INFINITY;
#pragma unroll
        for (int w = 0; w < kCandidateWarps; ++w) maximum = fmaxf(maximum, s.warpMaximum[w][h]);
        return maximum;
    };
    for (int h = 0; h < group; ++h) {
        const float maximum = maximumOf(h);
        float* logits = part.logits + h * part.stride;
        float sum = 0;
#pragma unroll 4
        for (int i = threadIdx.x; i < part.count; i += kCandidateThreads) {
            const float value = exp2f(logits[i] - maximum);
            logits[i] = value;
            sum += value;
        }
        sum = warpSum(sum);
        if (lane == 0) s.warpSum[warp][h] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * part.ranks; i += kCandidateThreads) {
        const int h = i >> part.shift, to = i & (part.ranks - 1);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kCandidateWarps; ++w) sum += s.warpSum[w][h];
        *cluster.map_shared_rank(&s.ranks[part.rank][h], to) = make_float2(maximumOf(h), sum);
    }
    cluster.sync();
    if (int(threadIdx.x) < group) {
        const int h = threadIdx.x;
        float maximum = -INFINITY, total = 0;
        for (int r = 0; r < part.ranks; ++r) maximum = fmaxf(maximum, s.ranks[r][h].x);
        for (int r = 0; r < part.ranks; ++r)
            if (s.ranks[r][h].x != -INFINITY) total += s.ranks[r][h].y * exp2f(s.ranks[r][h].x - maximum);
        const float mine = s.ranks[part.rank][h].x;
        s.factor[h] = mine == -INFINITY ? 0.f : exp2f(mine - maximum) / (total * float(group));
    }
    __syncthreads();
}

/// Scores as ranks. A thread writes only where it alone has read.
__device__ inline void rankPlaces(const CandidateShared& s, const CandidatePart& part) {
    for (int i = threadIdx.x; i < part.count; i += kCandidateThreads) {
        float score = 0;
#pragma unroll 4
        for (int h = 0; h < part.plan.group; ++h) score += part.logits[h * part.stride + i] * s.factor[h];
        part.ranksOfPlaces()[i] = rankOf(score);
    }
}

/// Of the places whose score is the last chosen one, the first `wanted` of the whole list; all blocks call it.
__device__ inline void cutTies(const CandidatePart& part, std::uint32_t wanted) {
    const auto cluster = thisCluster();
    auto* mine = reinterpret_cast<std::uint16_t*>(part.equal());
    for (int i = threadIdx.x; i < part.groups; i += kCandidateThreads)
        for (int r = 0; r < part.ranks; ++r) cluster.map_shared_rank(part.equals(), r)[part.listed(i)] = mine[i];
    cluster.sync();
    for (int i = threadIdx.x; i < part.groups; i += kCandidateThreads) {
        std::uint32_t before = 0;
        if (mine[i] == 0) continue;
        for (int other = 0; other < part.listed(i); ++other) before += __popc(part.equals()[other]);
        std::uint32_t bits = mine[i], kept = 0;
        for (; bits != 0 && before < wanted; ++before, bits &= bits - 1) kept |= bits & (0u - bits);
        mine[i] = std::uint16_t(kept);
    }
    __syncthreads();
}

/// Lists this block's chosen places and reports them. Returns how many; begins and ends with a barrier.
__device__ inline int takePlaces(CandidateShared& s, const CandidateAttentionArgs& a, const CandidatePart& part,
                                 Threshold threshold) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, words = (part.count + kWarp - 1) / kWarp;
    const bool ties = threshold.equals > 0 && a.wanted < part.all;
    __syncthreads();
    for (int w = warp; w < words; w += kCandidateWarps) {
        const int i = w * kWarp + lane;
        const std::uint32_t rank = i < part.count ? part.ranksOfPlaces()[i] : 0;
        const unsigned better = __ballot_sync(0xffffffffu, i < part.count && rank > threshold.rank),
                       equal = __ballot_sync(0xffffffffu, ties && i < part.count && rank == threshold.rank);
        if (lane == 0) part.better()[w] = better, part.equal()[w] = equal;
    }
    __syncthreads();
    if (ties) cutTies(part, threshold.equals);
    if (warp == 0) {
        int running = 0;
        for (int base = 0; base < words; base += kWarp) {
            const int w = base + lane, mine = w < words ? __popc(part.better()[w] | part.equal()[w]) : 0;
            int through = mine;
#pragma unroll
            for (int offset = 1; offset < kWarp; offset *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, through, offset);
                if (lane >= offset) through += other;
            }
            if (w < words) part.before()[w] = std::uint32_t(running + through - mine);
            running += __shfl_sync(0xffffffffu, through, kWarp - 1);
        }
        if (lane == 0) s.total = running;
    }
    __syncthreads();
    for (int w = warp; w < words; w += kCandidateWarps) {
        const unsigned chosen = part.better()[w] | part.equal()[w];
        if ((chosen >> lane & 1u) != 0)
            part.list()[part.before()[w] + __popc(chosen & ((1u << lane) - 1))] = std::uint16_t(w * kWarp + lane);
    }
    if (a.chosen != nullptr) {
        const int perItem = a.attend.capacity * (a.attend.shape.blockSize / kGroupPlaces);
        std::uint16_t* to = a.chosen + std::size_t(part.item) * perItem;
        for (int i = threadIdx.x; i < part.listedGroups; i += kCandidateThreads)
            to[part.listed(i)] = i / 2 < words
                                     ? std::uint16_t((part.better()[i / 2] | part.equal()[i / 2]) >> i % 2 * 16)
                                     : std::uint16_t(0);
    }
    __syncthreads();
    return s.total;
}

__device__ inline void copyPiece(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}

/// Four 8x8 pieces of shared memory, transposed, as fragments: lane l gives the row l % 8 of piece l / 8.
__device__ inline uint4 loadTransposed(const void* row) {
    uint4 pieces;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pieces.x), "=r"(pieces.y), "=r"(pieces.z), "=r"(pieces.w)
                 : "r"(unsigned(__cvta_generic_to_shared(row)))
                 : "memory");
    return pieces;
}

/// The chosen places, 16 a turn of a warp, which waits for nobody else: keys and values one by one from their blocks.
template <int kDim>
__device__ void attendPlaces(const DecodeAttentionArgs& a, const DecodePlace& place, const CandidatePart& part,
                             int total, Accumulator<kDim>& acc) {
    constexpr int kRow = kDim + kPadding, kPieces = kDim / 8;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const int values = a.shape.blockSize * kDim; // from a token's key to its value
    const Bf16* blocks = a.blocks + std::size_t(a.headFirst[part.item]) * 2 * values;
    const float* bias = a.tokenBias != nullptr && a.biasScale != 0.f ? a.tokenBias + a.biasFirst[part.item] : nullptr;
    Bf16* keyTile = reinterpret_cast<Bf16*>(part.tiles()) + std::size_t(warp) * 2 * kGroupPlaces * kRow;
    Bf16* valueTile = keyTile + kGroupPlaces * kRow;
    std::uint32_t q[kDim / 32][2][4];
    if (warp * kGroupPlaces < total) loadQueries<kDim>(a, place, q);
    for (int first = warp * kGroupPlaces; first < total; first += kCandidateWarps * kGroupPlaces) {
        const int here = min(kGroupPlaces, total - first);
        __syncwarp(); // the tile before was read
#pragma unroll
        for (int i = lane; i < kGroupPlaces * 2 * kPieces; i += kWarp) { // absent ones are the last, and masked
            const int at = i / (2 * kPieces), piece = i % kPieces * 8;
            const bool value = i / kPieces % 2 != 0;
            const int mine = part.list()[first + min(at, here - 1)];
            const Bf16* from = blocks + part.offsets()[mine / kGroupPlaces] + mine % kGroupPlaces * kDim + piece;
            copyPiece((value ? valueTile : keyTile) + at * kRow + piece, value ? from + values : from);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        float logits[2][4] = {};
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int c = 0; c < kDim / 32; ++c) {
                const uint4 k = *reinterpret_cast<const uint4*>(keyTile + (j * 8 + row) * kRow + c * 32 + quad * 8);
                mma16816(logits[j], q[c][0][0], q[c][0][1], q[c][0][2], q[c][0][3], k.x, k.y);
                mma16816(logits[j], q[c][1][0], q[c][1][1], q[c][1][2], q[c][1][3], k.z, k.w);
            }
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = j * 8 + quad * 2 + e;
                float extra = at < here ? 0.f : -INFINITY;
                if (bias != nullptr && at < here) {
                    const int mine = part.list()[first + at];
                    extra = a.biasScale * bias[part.tokens()[mine / kGroupPlaces] + mine % kGroupPlaces];
                }
                logits[j][e] = logits[j][e] * a.scale + extra;
                logits[j][e + 2] = logits[j][e + 2] * a.scale + extra;
            }
        std::uint32_t p[2][2];
        advanceSoftmax<kDim, 2>(logits, acc, p);
        const Bf16* mine = valueTile + lane % 16 * kRow + lane / 16 * 8;
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) {
            const uint4 v = loadTransposed(mine + i * 16);
            mma16816(acc.out[2 * i], p[0][0], p[0][1], p[1][0], p[1][1], v.x, v.y);
            mma16816(acc.out[2 * i + 1], p[0][0], p[0][1], p[1][0], p[1][1], v.z, v.w);
        }
    }
}

/// Merges the warps' results and sends every block of the cluster its share of the heads, which it merges. Of 16 heads'
/// results there are at most 16 in a block.
template <int kDim>
__device__ void mergeCandidates(CandidateShared& s, const DecodeAttentionArgs& a, const DecodePlace& place,
                                const CandidatePart& part, Accumulator<kDim>& acc) {
    constexpr int kRow = kDim + kPadding;
    const auto cluster = thisCluster();
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, quad = lane % 4;
    const int heads = place.heads, share = (heads + part.ranks - 1) >> part.shift;
    float* values = reinterpret_cast<float*>(part.tiles()); // [warps][heads][kRow]
    __syncthreads();                                        // keys and values were read
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 1);
        acc.sum[h] += __shfl_xor_sync(0xffffffffu, acc.sum[h], 2);
        if (quad == 0) s.warpMaxima[warp][row + 8 * h] = acc.maximum[h], s.warpSums[warp][row + 8 * h] = acc.sum[h];
        if (row + 8 * h >= heads) continue;
        float* to = values + (std::size_t(warp) * heads + row + 8 * h) * kRow + quad * 2;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i)
            *reinterpret_cast<float2*>(to + i * 8) = make_float2(acc.out[i][2 * h], acc.out[i][2 * h + 1]);
    }
    __syncthreads();
    for (int at = threadIdx.x; at < heads * (kDim / 4); at += kCandidateThreads) {
        const int h = at / (kDim / 4), c = at % (kDim / 4) * 4, owner = h / share,
                  slot = part.rank * share + h - owner * share;
        float maximum = -INFINITY, sum = 0;
#pragma unroll
        for (int w = 0; w < kCandidateWarps; ++w) maximum = fmaxf(maximum, s.warpMaxima[w][h]);
        const float reference = maximum == -INFINITY ? 0.f : maximum;
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kCandidateWarps; ++w) {
            const float factor = exp2f((s.warpMaxima[w][h] - reference) * kLog2e);
            const float4 value = *reinterpret_cast<const float4*>(values + (std::size_t(w) * heads + h) * kRow + c);
            sum += factor * s.warpSums[w][h];
            out.x += factor * value.x, out.y += factor * value.y, out.z += factor * value.z, out.w += factor * value.w;
        }
        *reinterpret_cast<float4*>(cluster.map_shared_rank(&s.merged[slot][c], owner)) = out;
        if (c == 0) *cluster.map_shared_rank(&s.mergedSums[slot], owner) = make_float2(maximum, sum);
    }
    cluster.sync();
    const int first = part.rank * share, mine = min(share, heads - first);
    for (int at = threadIdx.x; at < mine * (kDim / 2); at += kCandidateThreads) {
        const int h = at / (kDim / 2), c = at % (kDim / 2) * 2;
        float maximum = -INFINITY, sum = 0;
        float2 out = make_float2(0, 0);
        for (int r = 0; r < part.ranks; ++r) maximum = fmaxf(maximum, s.mergedSums[r * share + h].x);
        for (int r = 0; r < part.ranks; ++r) {
            const float2 theirs = s.mergedSums[r * share + h],
                         value = *reinterpret_cast<const float2*>(&s.merged[r * share + h][c]);
            const float factor = exp2f((theirs.x - maximum) * kLog2e); // somebody has attended to something
            sum += factor * theirs.y;
            out.x += factor * value.x, out.y += factor * value.y;
        }
        const std::size_t head = place.firstQueryHead + first + h;
        *reinterpret_cast<std::uint32_t*>(a.out + head * kDim + c) = packBf16(out.x / sum, out.y / sum);
        if (c == 0 && a.logSums != nullptr) a.logSums[head] = maximum + logf(sum);
    }
}

} // namespace kvscope::cuda
