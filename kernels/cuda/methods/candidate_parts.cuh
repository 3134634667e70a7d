// AsyncTLS: what all phases of the attention over candidates (candidate_attention.h) use: which places a thread block
// has, where arrays lie in shared memory, and the choice of places.
#pragma once

#include "kernels/cuda/attention/attention_parts.cuh"
#include "kernels/cuda/choice/token_choice.cuh"
#include "kernels/cuda/methods/candidate_attention.h"
#include "kernels/cuda/methods/labels.cuh"

namespace kvscope::cuda {

constexpr int kCandidateThreads = 512, kCandidateWarps = kCandidateThreads / kWarp;
constexpr int kAttendWarps = 8; // warps that attend to chosen places, each with a tile of keys and values of its own
/// Places go to the thread blocks of a cluster in turn, this many at a time. Chosen places often lie together; in turn
/// they are spread over the thread blocks, each of which attends to its own.
constexpr int kGroupPlaces = 16;
constexpr int kPadding = 8; // elements after a key or value in shared memory, so that rows lie in different banks

/// Numbers that are worked out for a launch. Offsets are bytes from the start of shared memory.
struct CandidatePlan {
    int ranks = 1, groups = 0; // thread blocks of a cluster; most groups of places that one of them has
    int group = 1, stride = 0; // query heads of the KV head; floats from one head's logits to the next one's
    bool logitsHeld = true;    // whether logits lie in shared memory
    Divider byBlock, byRank;   // divide a number of groups of places
    unsigned tokens = 0, offsets = 0, better = 0, equal = 0, before = 0, equals = 0, list = 0, tiles = 0;
    std::size_t total = 0;

    CandidatePlan(const AttentionShape& shape, int capacity, int ranks, bool held)
        : ranks(ranks), group(shape.group()), logitsHeld(held), byBlock(shape.blockSize / kGroupPlaces), byRank(ranks) {
        const int all = capacity * (shape.blockSize / kGroupPlaces);
        groups = ((all + ranks - 1) / ranks + 1) / 2 * 2;
        stride = groups * kGroupPlaces + 8; // pairs of logits of neighbouring heads lie in different banks
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
        std::size_t bytes = std::size_t(kAttendWarps * kGroupPlaces) * 2 * row; // keys and values, later the merge
        if (const std::size_t logits = std::size_t(shape.group() * stride) * 4; held && logits > bytes) bytes = logits;
        tiles = take(bytes);
    }
};

struct CandidateShared {
    ThresholdShared<kCandidateThreads> threshold;
    union {
        Bf16 query[kMostGroup][kMostChannels]; // the labels' channels of the queries, zeros up to a whole tile of heads
        float merged[kHeads][kMostChannels];   // [rank][heads that this thread block merges] as the ranks send them
    };
    float querySum[kMostGroup];
    std::int32_t channel[kMostChannels];
    float warpMaximum[kCandidateWarps][kMostGroup], warpSum[kCandidateWarps][kMostGroup];
    float2 ranks[kChoiceCluster][kMostGroup]; // maximum and sum of every thread block of the cluster
    float2 softmax[kMostGroup]; // maximum over all places, and what exponentials less it are multiplied by
    float warpMaxima[kAttendWarps][kHeads], warpSums[kAttendWarps][kHeads]; // of the attention
    float2 mergedSums[kHeads];                                              // maxima and sums that belong to `merged`
    int total;
};

/// The places of one thread block of a cluster: the groups number rank, rank + ranks, .. of the list.
struct CandidatePart {
    int item, row, rank, ranks, stride;
    // all: places of the whole list up to the position. count: how many of them this thread block has; they are in its
    // first `groups` groups. listedGroups: its groups, those behind the position included
    int all = 0, count = 0, groups = 0, listedGroups = 0;
    unsigned char* raw;
    const CandidatePlan& plan;
    float* logits; // [group][stride]

    __device__ CandidatePart(const CandidateAttentionArgs& a, const CandidatePlan& plan, int rank, int item, int row,
                             unsigned char* raw)
        : item(item), row(row), rank(rank), ranks(plan.ranks), stride(plan.stride), raw(raw), plan(plan),
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
    /// How many of the first `n` groups of the list belong to this thread block.
    __device__ int own(int n) const { return n > rank ? plan.byRank(n - rank + ranks - 1) : 0; }
    /// The number, in the list, of a group of this thread block.
    __device__ int listed(int group) const { return group * ranks + rank; }

    /// Reads the list. early: called before the wait for earlier kernels; also asks for the labels, which then come
    /// from memory while the earlier kernels still run.
    __device__ void read(const CandidateAttentionArgs& a, bool early) {
        const int bs = a.attend.shape.blockSize, dim = a.attend.shape.dim, perBlock = bs / kGroupPlaces;
        const std::size_t first = std::size_t(item) * a.attend.list.capacity;
        const int blocks = a.attend.list.count[item];
        all = blocks > 0 ? (blocks - 1) * bs + a.attend.position[row] % bs + 1 : 0;
        const int whole = all / kGroupPlaces;
        count = own(whole) * kGroupPlaces + (whole - plan.byRank(whole) * ranks == rank ? all % kGroupPlaces : 0);
        groups = (count + kGroupPlaces - 1) / kGroupPlaces;
        listedGroups = own(blocks * perBlock);
        const std::size_t labelled = std::size_t(item) * a.labels.stride;
        for (int i = threadIdx.x; i < groups; i += kCandidateThreads) {
            const int at = listed(i), entry = plan.byBlock(at), within = (at - entry * perBlock) * kGroupPlaces;
            const int block = a.attend.list.block[first + entry], token = block * bs + within;
            const int slot = a.attend.list.slot != nullptr ? a.attend.list.slot[first + entry] : block;
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

/// Of the places whose score equals the lowest chosen one, keeps the first `wanted` of the whole list. All thread
/// blocks of the cluster call this.
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

/// Lists this thread block's chosen places and reports them. Begins and ends with a barrier. @return how many they are
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
        const int perItem = a.attend.list.capacity * (a.attend.shape.blockSize / kGroupPlaces);
        std::uint16_t* to = a.chosen + std::size_t(part.item) * perItem;
        for (int i = threadIdx.x; i < part.listedGroups; i += kCandidateThreads)
            to[part.listed(i)] = i / 2 < words
                                     ? std::uint16_t((part.better()[i / 2] | part.equal()[i / 2]) >> i % 2 * 16)
                                     : std::uint16_t(0);
    }
    __syncthreads();
    return s.total;
}

} // namespace kvscope::cuda
