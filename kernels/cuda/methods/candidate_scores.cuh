// AsyncTLS: the scores of places by their labels. The tensor cores make logits, and all thread blocks of a cluster make
// one softmax of them.
#pragma once

#include "kernels/cuda/methods/candidate_parts.cuh"

namespace kvscope::cuda {

/// Brings the labels' channels of the queries into shared memory, copies the queries to keptQ if that is wanted, and
/// writes the newest token's label.
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

/// Turns two codes of four bits into bf16. A word has the codes of eight channels; pair i is channels i and i + 4.
__device__ inline std::uint32_t codePair(std::uint32_t word, int i) {
    // The bf16 number 128 + code has the code in its last bits, so that subtracting 128 leaves the code.
    const std::uint32_t raised = (word >> (4 * i) & 0x000f000fu) | 0x43004300u, base = 0x43004300u;
    const __nv_bfloat162 code =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(raised), reinterpret_cast<const __nv_bfloat162&>(base));
    return reinterpret_cast<const std::uint32_t&>(code);
}

/// Products of 16 queries with 8 labels on the tensor cores, in chunks of 32 channels. The columns of the fragments are
/// permuted so that a lane multiplies the channels of the words that it loads itself: of each chunk one word of codes
/// (8 channels), or four words of two bf16.
template <int kChunks, bool kCoded> struct LabelProduct {
    static constexpr int kWords = kCoded ? 1 : 4; // words of a chunk that a lane loads
    std::uint32_t query[kChunks][2][4];

    __device__ void load(const CandidateShared& s, int firstHead) {
        const int lane = threadIdx.x % kWarp, row = lane / 4, quad = lane % 4;
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                // Parts 0 and 1 are the rows `row` and row + 8 of the first columns, parts 2 and 3 those of the others.
                for (int part = 0; part < 4; ++part) {
                    const Bf16* from = s.query[firstHead + row + part % 2 * 8] + c * 32;
                    const int low = kCoded ? quad * 8 + half * 2 + part / 2 : half * 16 + part / 2 * 8 + quad * 2;
                    const int high = low + (kCoded ? 4 : 1);
                    query[c][half][part] = std::uint32_t(__bfloat16_as_ushort(from[low])) |
                                           std::uint32_t(__bfloat16_as_ushort(from[high])) << 16;
                }
    }
    /// Reads the words of the label of the lane's token, which lie `stride` apart.
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

/// A lane's part of the labels of a group of places.
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

/// Writes the logits of this thread block's places, in units of log2, and each warp's maxima.
template <int kChunks, bool kCoded>
__device__ void scoreLabels(CandidateShared& s, const CandidateAttentionArgs& a, const CandidatePart& part) {
    constexpr int kTogether = kChunks > 1 ? 1 : kCoded ? 5 : 2; // groups whose labels are loaded at a time
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

/// The thread blocks of the cluster send each other the maxima of their logits and the sums of their exponentials, and
/// each works out the maximum of every head over all places and what turns an exponential less that maximum into a
/// share of the softmax: the same bits in every thread block, so that equal logits get equal scores wherever they lie.
/// Ends with a barrier.
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
        const float* logits = part.logits + h * part.stride;
        float sum = 0;
#pragma unroll 4
        for (int i = threadIdx.x; i < part.count; i += kCandidateThreads) sum += exp2f(logits[i] - maximum);
        sum = warpSum(sum);
        if (lane == 0) s.warpSum[warp][h] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * part.ranks; i += kCandidateThreads) {
        const int h = part.plan.byRank(i), to = i - h * part.ranks;
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
        s.softmax[h] = make_float2(maximum, 1 / (total * float(group)));
    }
    __syncthreads();
}

/// Adds up the shares of all heads and writes them as ranks (rankOf) over the first head's logits. A thread writes only
/// where no other thread reads.
__device__ inline void rankPlaces(const CandidateShared& s, const CandidatePart& part) {
    for (int i = threadIdx.x; i < part.count; i += kCandidateThreads) {
        float score = 0;
#pragma unroll 4
        for (int h = 0; h < part.plan.group; ++h)
            score += exp2f(part.logits[h * part.stride + i] - s.softmax[h].x) * s.softmax[h].y;
        part.ranksOfPlaces()[i] = rankOf(score);
    }
}

} // namespace kvscope::cuda
