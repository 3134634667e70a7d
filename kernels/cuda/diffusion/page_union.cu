#include "kernels/cuda/diffusion/page_union.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"
#include "kernels/cuda/diffusion/cluster_union.cuh"
#include "kernels/cuda/diffusion/peak_choice.cuh"
#include "kernels/cuda/diffusion/ranked_pages.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPageTiles = 2, kTilePages = 8, kQueryTile = 16; // tensor-core tiles of a warp; pages and queries of one
constexpr int kPagesOfWarp = kPageTiles * kTilePages;

__device__ inline std::uint32_t lowest(std::uint32_t pair, bool positive) {
    const __nv_bfloat162 zero = __float2bfloat162_rn(0.f), value = reinterpret_cast<const __nv_bfloat162&>(pair);
    const __nv_bfloat162 part = positive ? __hmax2(value, zero) : __hmin2(value, zero);
    return reinterpret_cast<const std::uint32_t&>(part);
}

/// Grid (128 pages, kvHeads, rows). A warp keeps the ranges of 16 pages as fragments and multiplies all queries with
/// them, 16 at a time: with fewer pages, reading queries from shared memory would take longer than the products. The
/// columns of both operands are permuted alike: lane quad q has the channels 8q to 8q + 7 of every 32. The thread block
/// holds 64 queries at a time in shared memory.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    scoreKernel(const __grid_constant__ PageUnionArgs a, int span, int stride, int words) {
    constexpr int kChunks = kDim / 32, kHeld = 64, kRow = kDim / 8; // pieces of 16 bytes of a query
    constexpr int kPitch = kRow + 4; // so that eight lanes that read at once meet no bank twice
    __shared__ uint4 held[kHeld * kPitch];
    __shared__ std::uint8_t tokens[kMostDenoised];
    static_assert(kPagesOfWarp == kPeakPages);
    letNextKernelStart();
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z), group = shape.queryHeads / shape.kvHeads;
    const BlockRow of = a.rows.table[row];
    const int lane = int(threadIdx.x) % kWarp, rowInTile = lane / 4, quad = lane % 4,
              pages = of.first / shape.blockSize,
              page = (int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp) * kPagesOfWarp;
    const bool taken = of.is(BlockRow::kTaken) && of.is(BlockRow::kSparse);
    uint4 low[kPageTiles][kChunks], high[kPageTiles][kChunks];
    if (taken && page < pages) { // earlier forwards wrote the ranges of complete pages: nothing to wait for
        const std::size_t first = std::size_t(a.rows.headFirst[of.sequence * shape.kvHeads + g]);
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t) {
            const Bf16* const range =
                a.ranges + (first + std::size_t(min(page + t * kTilePages + rowInTile, pages - 1))) * 2 * kDim;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                low[t][c] = loadOnce(range + c * 32 + quad * 8);
                high[t][c] = loadOnce(range + kDim + c * 32 + quad * 8);
            }
        }
    }
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.scoreMark);
    if (!taken || int(blockIdx.x) * kWarps * kPagesOfWarp >= pages) return;
    std::uint32_t kept = 0; // of the warp's pages those that no query may choose
    if (a.always != nullptr && page < pages)
        kept = a.always[std::size_t(row * shape.kvHeads + g) * words + page / 32] >> (page % 32);
    const std::uint64_t active = activeOf(a.rows, row, g);
    listActive(active, tokens);
    const int queries = __popcll(active) * group;
    float* const scores = a.scores + std::size_t(row * shape.kvHeads + g) * std::size_t(a.rows.block * group) * stride;
    const auto queryOf = [&](int i) {
        const int token = tokens[i / group], head = g * group + i % group;
        return a.q + (std::size_t(row * a.rows.block + token) * shape.queryHeads + head) * kDim;
    };
    for (int begin = 0; begin < queries; begin += kHeld) {
        constexpr int kStep = kThreads / kRow, kMine = kHeld / kStep; // queries that the thread block copies at a time
        const int mine = int(threadIdx.x) / kRow, piece = int(threadIdx.x) % kRow;
        uint4 pieces[kMine];
#pragma unroll
        for (int i = 0; i < kMine; ++i) // what lies behind the last query is read as the last one, and not written
            pieces[i] =
                *reinterpret_cast<const uint4*>(queryOf(min(begin + mine + i * kStep, queries - 1)) + piece * 8);
        __syncthreads(); // all have done with the queries before
#pragma unroll
        for (int i = 0; i < kMine; ++i) held[(mine + i * kStep) * kPitch + piece] = pieces[i];
        __syncthreads();
        const int here = page < pages ? min(kHeld, queries - begin) : 0;
        for (int first = 0; first < here; first += kQueryTile) {
            const int upper = first + rowInTile, lower = upper + 8;
            float sums[kPageTiles][2][4] = {}; // two chains of products for each tile
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                const uint4 x = held[upper * kPitch + c * 4 + quad], y = held[lower * kPitch + c * 4 + quad];
#pragma unroll
                for (int positive = 0; positive < 2; ++positive) {
                    const std::uint32_t q[8] = {lowest(x.x, positive), lowest(y.x, positive), lowest(x.y, positive),
                                                lowest(y.y, positive), lowest(x.z, positive), lowest(y.z, positive),
                                                lowest(x.w, positive), lowest(y.w, positive)};
#pragma unroll
                    for (int t = 0; t < kPageTiles; ++t) {
                        const uint4 r = positive ? high[t][c] : low[t][c];
                        mma16816(sums[t][positive], q[0], q[1], q[2], q[3], r.x, r.y);
                        mma16816(sums[t][positive], q[4], q[5], q[6], q[7], r.z, r.w);
                    }
                }
            }
            std::uint32_t peaks[2] = {}; // of the upper and the lower query
#pragma unroll
            for (int t = 0; t < kPageTiles; ++t) {
                const auto& of8 = sums[t];
                // Both pages lie below the span or behind it.
                const int within = t * kTilePages + quad * 2, at = page + within;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float2 two =
                        make_float2(of8[0][2 * half] + of8[1][2 * half], of8[0][2 * half + 1] + of8[1][2 * half + 1]);
                    if (at < span && upper + 8 * half < here)
                        *reinterpret_cast<float2*>(scores + std::size_t(begin + upper + 8 * half) * stride + at) = two;
                    if (at < pages && (kept >> within & 1) == 0) peaks[half] = max(peaks[half], rankingKey(two.x));
                    if (at + 1 < pages && (kept >> within & 2) == 0) peaks[half] = max(peaks[half], rankingKey(two.y));
                }
            }
            if (a.pagesPerQuery > kMostPeakCount) continue; // nobody reads peaks
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                std::uint32_t peak = peaks[half]; // of the lane's pages; the quad has those of all 16
                peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
                peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
                if (quad == 0 && upper + 8 * half < here)
                    scores[std::size_t(begin + upper + 8 * half) * stride + span + page / kPeakPages] =
                        __uint_as_float(peak);
            }
        }
    }
}

/// Writes all pages of the union as a list; the thread block that has finished last calls it. always: whether the pages
/// of PageUnionArgs::always are in the union
__device__ inline void listUnion(const PageUnionArgs& a, int item, int words, int pages, bool incomplete, bool always,
                                 BlockCounter<kWarps>& counter) {
    std::uint32_t* const bits = a.words + std::size_t(item) * words;
    std::int32_t* const list = a.pages + std::size_t(item) * a.maxPages;
    const int count = listBits(words, list, counter, [&](int w) {
        std::uint32_t word = __ldcg(bits + w);
        bits[w] = 0;
        if (always && a.always != nullptr) word |= a.always[std::size_t(item) * words + w];
        if (incomplete && w == pages / 32) word |= 1u << (pages % 32);
        if (a.record != nullptr) a.record[std::size_t(item) * words + w] = word;
        return word;
    });
    if (threadIdx.x == 0) a.count[item] = count;
}

/// Finds the `count` largest of many keys with three barriers, where count is small. Pairs of threads know the largest
/// of their keys: of these kPairs numbers the one of rank `count` is a bound that at least `count` keys reach, and
/// hardly more, which are then ranked among each other.
struct FewLargest {
    static constexpr int kPairs = kThreads / 2, kMost = kPairs;
    struct Shared {
        std::uint32_t largest[kPairs], keys[kMost];
        std::int32_t places[kMost];
        std::uint32_t bound;
        int found;
    };

    /// Calls take(i), each on some thread, for the `count` largest of keys[0, n) in shared memory; of equal ones the
    /// lower. mine: the largest key that this thread has written, at the places i with i / 2 % kThreads == threadIdx.x.
    /// All threads of the thread block call this. @return whether it did; else takeLargest has to
    template <class Take>
    static __device__ bool take(Shared& shared, const std::uint32_t* keys, int n, int count, std::uint32_t mine,
                                Take&& take) {
        if (count > kMost / 2) return false;
        const int thread = int(threadIdx.x), pair = thread / 2;
        mine = max(mine, __shfl_xor_sync(0xffffffffu, mine, 1));
        if (thread % 2 == 0) shared.largest[pair] = mine;
        if (thread == 0) shared.found = 0;
        __syncthreads();
        int before = 0; // larger ones among those that this thread compares
#pragma unroll 8
        for (int i = 0; i < kPairs / 2; i += 4) {
            const int first = thread % 2 * (kPairs / 2) + i;
            const uint4 four = *reinterpret_cast<const uint4*>(shared.largest + first);
            const std::uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) before += others[j] > mine || (others[j] == mine && first + j < pair) ? 1 : 0;
        }
        before += __shfl_xor_sync(0xffffffffu, before, 1);
        if (before == count - 1 && thread % 2 == 0) shared.bound = mine;
        __syncthreads();
        const std::uint32_t bound = shared.bound;
        if (bound == 0) return false; // a key of 0 is never taken
        if (mine >= bound)
            for (int i = 2 * thread; i < n; i += 2 * kThreads)
                for (int j = i; j < min(i + 2, n); ++j) {
                    if (keys[j] < bound) continue;
                    const int place = atomicAdd(&shared.found, 1);
                    if (place < kMost) shared.keys[place] = keys[j], shared.places[place] = j;
                }
        __syncthreads();
        const int found = shared.found;
        if (found > kMost) return false; // many are equal
        if (thread >= found) return true;
        const std::uint32_t key = shared.keys[thread];
        const int place = shared.places[thread];
        int rank = 0;
        for (int i = 0; i < found && found > count; ++i)
            rank += shared.keys[i] > key || (shared.keys[i] == key && shared.places[i] < place) ? 1 : 0;
        if (rank < count) take(place);
        return true;
    }
};

/// Grid (block * group, kvHeads, rows): a thread block chooses the pages of one query.
__global__ void __launch_bounds__(kThreads) uniteKernel(PageUnionArgs a, int stride, int words) {
    extern __shared__ std::uint32_t keys[]; // [complete pages]
    __shared__ BlockCounter<kWarps>::Shared room;
    __shared__ FewLargest::Shared few;
    __shared__ bool last;
    letNextKernelStart();
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z), group = shape.queryHeads / shape.kvHeads;
    const int item = row * shape.kvHeads + g, query = int(blockIdx.x);
    const BlockRow of = a.rows.table[row];
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.unionMark);
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kSparse)) return;
    const int queries = __popcll(activeOf(a.rows, row, g)) * group, pages = of.first / shape.blockSize;
    const bool incomplete = of.first % shape.blockSize != 0 && queries > 0;
    BlockCounter<kWarps> counter(room);
    if (queries == 0) { // nothing is chosen: an empty list
        if (query == 0) listUnion(a, item, words, pages, false, false, counter);
        return;
    }
    if (query >= queries) return;
    const float* const scores = a.scores + (std::size_t(item) * std::size_t(a.rows.block * group) + query) * stride;
    std::uint32_t* const bits = a.words + std::size_t(item) * words;
    if (a.pagesPerQuery >= pages) {
        for (int w = int(threadIdx.x); w * 32 < pages; w += kThreads)
            atomicOr(bits + w, pages - w * 32 >= 32 ? 0xffffffffu : (1u << (pages - w * 32)) - 1);
    } else {
        const std::uint32_t* const always = a.always != nullptr ? a.always + std::size_t(item) * words : nullptr;
        std::uint32_t mine = 0;                          // the largest
        constexpr int kAtOnce = 8, kStep = 2 * kThreads; // loads that are under way together
        for (int begin = 0; begin < pages; begin += kAtOnce * kStep) {
            const int first = begin + 2 * int(threadIdx.x);
            float2 two[kAtOnce];
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) // the stride is even
                two[u] = *reinterpret_cast<const float2*>(scores + (first + u * kStep < pages ? first + u * kStep : 0));
            __syncwarp(); // the compiler would move loads behind the use of others
#pragma unroll
            for (int u = 0; u < kAtOnce; ++u) {
                const int i = first + u * kStep;
                const std::uint32_t word = always != nullptr && i < pages ? always[i / 32] >> (i % 32) : 0u;
                const std::uint32_t low = (word & 1) != 0 || i >= pages ? 0 : rankingKey(two[u].x),
                                    high = (word & 2) != 0 || i + 1 >= pages ? 0 : rankingKey(two[u].y);
                if (i < pages) keys[i] = low;
                if (i + 1 < pages) keys[i + 1] = high;
                mine = max(mine, max(low, high));
            }
        }
        const auto take = [&](int i) { atomicOr(bits + i / 32, 1u << (i % 32)); };
        if (!FewLargest::take(few, keys, pages, a.pagesPerQuery, mine, take)) {
            __syncthreads();
            takeLargest(keys, pages, a.pagesPerQuery, counter, take);
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(a.arrivals + item, 1u) + 1 == unsigned(queries);
        if (last) a.arrivals[item] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    listUnion(a, item, words, pages, incomplete, true, counter);
}

/// Does what uniteKernel does without waiting for global memory except for scores and list: what is chosen goes from
/// thread block to thread block through their shared memory. Grid (kUnionBlocks, kvHeads, rows): a cluster has a (row,
/// KV head), whose queries its thread blocks take in turn.
__global__ void __launch_bounds__(kUnionThreads)
    clusterUnionKernel(const __grid_constant__ PageUnionArgs a, int stride, int words) {
    __shared__ QueryKeys::Shared rooms[kQueriesOfBlock];
    __shared__ std::uint32_t bits[kMostUnitedWords]; // pages that the queries of this thread block choose
    __shared__ BlockCounter<kUnionThreads / kWarp>::Shared counts;
    letNextKernelStart();
    const auto cluster = thisCluster();
    const AttentionShape& shape = a.rows.shape;
    const int rank = int(cluster.block_rank()), g = int(blockIdx.y), row = int(blockIdx.z),
              group = shape.queryHeads / shape.kvHeads, item = row * shape.kvHeads + g,
              slot = int(threadIdx.x) / kQueryThreads;
    const BlockRow of = a.rows.table[row];
    for (int w = int(threadIdx.x); w < words; w += kUnionThreads) bits[w] = 0;
    __syncthreads();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.unionMark);
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kSparse)) return; // all of the cluster does
    const int queries = __popcll(activeOf(a.rows, row, g)) * group, pages = of.first / shape.blockSize;
    const bool incomplete = of.first % shape.blockSize != 0 && queries > 0, whole = a.pagesPerQuery >= pages;
    const std::uint32_t* const always = a.always != nullptr ? a.always + std::size_t(item) * words : nullptr;
    const float* const scores = a.scores + std::size_t(item) * std::size_t(a.rows.block * group) * stride;
    QueryKeys keys(rooms[slot]);
    const int most = whole ? 0 : a.rows.block * group;
    for (int query = slot * kUnionBlocks + rank; query < most; query += kUnionBlocks * kQueriesOfBlock) {
        keys.read(scores + std::size_t(query) * stride, pages, always); // while the active tokens are still being read
        if (query >= queries) break;
        keys.takeLargest(a.pagesPerQuery, [&](int page) { atomicOr(bits + page / 32, 1u << (page % 32)); });
        keys.join(); // the next query takes the same shared memory
    }
    cluster.sync();
    if (rank == 0) {
        BlockCounter<kUnionThreads / kWarp> counter(counts);
        const int count = listBits(words, a.pages + std::size_t(item) * a.maxPages, counter, [&](int w) {
            std::uint32_t word = 0;
            if (!whole) {
#pragma unroll
                for (int r = 0; r < kUnionBlocks; ++r) word |= cluster.map_shared_rank(&bits[0], r)[w];
            } else if (queries > 0 && w * 32 < pages) {
                word = pages - w * 32 >= 32 ? 0xffffffffu : (1u << (pages - w * 32)) - 1;
            }
            if (queries > 0 && always != nullptr) word |= always[w];
            if (incomplete && w == pages / 32) word |= 1u << (pages % 32);
            if (a.record != nullptr) a.record[std::size_t(item) * words + w] = word;
            return word;
        });
        if (threadIdx.x == 0) a.count[item] = count;
    }
    cluster.sync(); // the others' shared memory has been read
}

constexpr int kPeakBlocks = 8, kPeakWarps = 8; // thread blocks of a cluster, warps of each

/// Does what uniteKernel does where a query chooses few pages: a warp finds those of one query by peaks, and what is
/// chosen goes to the shared memory of the cluster's first thread block. Grid (kPeakBlocks, kvHeads, rows): a cluster
/// has a (row, KV head), whose queries its warps take in turn.
__global__ void __launch_bounds__(kPeakWarps* kWarp)
    peakUnionKernel(const __grid_constant__ PageUnionArgs a, int span, int stride, int words) {
    __shared__ PeakChoice::Shared rooms[kPeakWarps];
    __shared__ std::uint32_t bits[PeakChoice::kMostPages / 32]; // pages that queries choose; of the first thread block
    __shared__ BlockCounter<kPeakWarps>::Shared counts;
    letNextKernelStart();
    const auto cluster = thisCluster();
    const AttentionShape& shape = a.rows.shape;
    const int rank = int(cluster.block_rank()), g = int(blockIdx.y), row = int(blockIdx.z),
              group = shape.queryHeads / shape.kvHeads, item = row * shape.kvHeads + g, warp = int(threadIdx.x) / kWarp,
              most = a.rows.block * group;
    const BlockRow of = a.rows.table[row];
    if (rank == 0)
        for (int w = int(threadIdx.x); w < words; w += kPeakWarps * kWarp) bits[w] = 0;
    cluster.sync(); // before others set bits
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.unionMark);
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kSparse)) return; // all of the cluster does
    const int pages = of.first / shape.blockSize;
    const bool whole = a.pagesPerQuery >= pages;
    const std::uint32_t* const always = a.always != nullptr ? a.always + std::size_t(item) * words : nullptr;
    const float* const scores = a.scores + std::size_t(item) * std::size_t(most) * stride;
    std::uint32_t* const united = cluster.map_shared_rank(&bits[0], 0);
    for (int query = warp * kPeakBlocks + rank; query < (whole ? 0 : most); query += kPeakBlocks * kPeakWarps) {
        const float* const its = scores + std::size_t(query) * stride;
        PeakChoice choice(rooms[warp], its, its + span, pages, always);
        if (query >= __popcll(activeOf(a.rows, row, g)) * group) break; // read beside the keys
        choice.takeLargest(a.pagesPerQuery, [&](int page) { atomicOr(united + page / 32, 1u << (page % 32)); });
    }
    cluster.sync();
    if (rank > 0) return;
    const bool chooses = activeOf(a.rows, row, g) != 0, incomplete = of.first % shape.blockSize != 0 && chooses;
    BlockCounter<kPeakWarps> counter(counts);
    const int count = listBits(words, a.pages + std::size_t(item) * a.maxPages, counter, [&](int w) {
        std::uint32_t word = bits[w];
        if (whole && chooses && w * 32 < pages)
            word = pages - w * 32 >= 32 ? 0xffffffffu : (1u << (pages - w * 32)) - 1;
        if (chooses && always != nullptr) word |= always[w];
        if (incomplete && w == pages / 32) word |= 1u << (pages % 32);
        if (a.record != nullptr) a.record[std::size_t(item) * words + w] = word;
        return word;
    });
    if (threadIdx.x == 0) a.count[item] = count;
}

constexpr std::size_t keyBytes(int maxPages) { return std::size_t(maxPages) * sizeof(std::uint32_t); }

/// Whether warps choose by peaks.
bool peaksUnite(const Launch& how, const PageUnionArgs& args) {
    return how.clusters && args.pagesPerQuery <= kMostPeakCount && args.maxPages <= PeakChoice::kMostPages;
}

/// Whether clusters choose: a prefix whose scores fit a query's registers, and so few heads that all clusters run at
/// once. With more, a thread block for each query fills the GPU as well.
bool clusterUnites(const Launch& how, const PageUnionArgs& args) {
    return how.clusters && args.maxPages <= kMostUnited && args.rows.items() * kUnionBlocks <= how.multiprocessors;
}

} // namespace

void checkPageUnion(const Launch& how, int maxPages) {
    checkRanked(how, maxPages, keyBytes(maxPages), "pages", "page");
}

void scoreUnionPages(const Launch& how, const PageUnionArgs& args) {
    if (args.rows.rows == 0 || args.maxPages == 0) return;
    const Grid grid{dim3(unsigned((args.maxPages + kWarps * kPagesOfWarp - 1) / (kWarps * kPagesOfWarp)),
                         unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
                    dim3(kThreads)};
    launch(how, grid, args.rows.shape.dim == 64 ? scoreKernel<64> : scoreKernel<128>, "scoring pages", args,
           args.scoreSpan(), args.scoreStride(), args.wordsOf());
}

void unitePages(const Launch& how, const PageUnionArgs& args) {
    if (args.rows.rows == 0) return;
    if (peaksUnite(how, args))
        return launch(how,
                      {dim3(unsigned(kPeakBlocks), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
                       dim3(kPeakWarps * kWarp), 0, kPeakBlocks},
                      peakUnionKernel, "choosing pages by peaks", args, args.scoreSpan(), args.scoreStride(),
                      args.wordsOf());
    if (clusterUnites(how, args))
        return launch(how,
                      {dim3(unsigned(kUnionBlocks), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
                       dim3(kUnionThreads), 0, kUnionBlocks},
                      clusterUnionKernel, "choosing pages in clusters", args, args.scoreStride(), args.wordsOf());
    const Grid grid{dim3(unsigned(args.rows.queries()), unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)),
                    dim3(kThreads), keyBytes(args.maxPages)};
    raiseShared(uniteKernel, grid.sharedBytes, "preparing the choice of pages");
    launch(how, grid, uniteKernel, "choosing pages", args, args.scoreStride(), args.wordsOf());
}

} // namespace kvscope::cuda
