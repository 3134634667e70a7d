#include "kernels/cuda/diffusion/prefix_pages.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/ranked_pages.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__device__ inline bool isIn(const std::uint32_t* bits, int i) { return (bits[i / 32] >> (i % 32) & 1) != 0; }

/// What a thread block knows of its (row, KV head).
struct PrefixHead {
    int item, complete;                     // complete: pages
    std::int64_t window, firstSlot;         // blocks of the array
    std::int32_t *slotOf, *usedAt, *pageIn; // of the head
    __device__ PrefixHead(const PrefixPagesArgs& a, const BlockRow& of, int row, int g)
        : item(row * a.rows.shape.kvHeads + g), complete(of.first / a.rows.shape.blockSize),
          window(a.rows.headFirst[of.sequence * a.rows.shape.kvHeads + g]),
          firstSlot(a.firstSlot + std::int64_t(item) * a.slots.count),
          slotOf(a.slots.slotOf + std::size_t(item) * a.maxPages),
          usedAt(a.slots.usedAt + std::size_t(item) * a.maxPages),
          pageIn(a.slots.pageIn + std::size_t(item) * a.slots.count) {}
};

/// Where blocks begin in units of the lists of moves, counted from the layer's store.
struct StoreUnits {
    std::int64_t ofBlock, array; // units of a block; where the array begins
    __device__ explicit StoreUnits(const PrefixPagesArgs& a)
        : ofBlock(std::int64_t(blockBytes(a.rows.shape.blockSize, a.rows.shape.dim)) / kStoreUnit),
          array((reinterpret_cast<const char*>(a.blocks) - reinterpret_cast<const char*>(a.store)) / kStoreUnit) {}
    __device__ std::int64_t ofStore(std::int64_t block) const { return block * ofBlock; }
    __device__ std::int64_t ofArray(std::int64_t block) const { return array + block * ofBlock; }
};

/// Adds `count` to a counter of the layer. @return, to all threads, what it was before; with a barrier
__device__ inline unsigned reserve(std::uint32_t* counter, unsigned count, unsigned& shared) {
    if (threadIdx.x == 0) shared = count > 0 ? atomicAdd(counter, count) : 0;
    __syncthreads();
    return shared;
}

/// Moves all complete pages of a prefix to the window.
__device__ inline void moveWhole(const PrefixPagesArgs& a, const PrefixHead& head, BlockCounter<kWarps>& counter,
                                 unsigned& shared) {
    const StoreUnits units(a);
    const unsigned first = reserve(a.moves.counts + PrefixPagesArgs::kMoves, unsigned(head.complete), shared);
    int loads = 0;
    for (int page = int(threadIdx.x); page < head.complete; page += kThreads) {
        const int slot = head.slotOf[page];
        const std::int64_t to = head.window + page;
        loads += slot == 0 ? 1 : 0;
        a.moves.loads[first + unsigned(page)] = {
            slot == 0 ? units.ofStore(to) : units.ofArray(head.firstSlot + slot - 1), to};
    }
    loads = counter.sum(loads);
    if (threadIdx.x == 0 && loads > 0) atomicAdd(a.moves.counts + PrefixPagesArgs::kLoads, unsigned(loads));
}

/// Lists the slots that the first `kept` misses take. Slots that are chosen by use are listed in the order of their
/// numbers: which of them a page takes changes nothing. keys: [complete pages], bits: [slots] in shared memory. Ends
/// with a barrier.
__device__ inline void listFreeSlots(const PrefixPagesArgs& a, const PrefixHead& head, const std::uint32_t* united,
                                     int kept, int now, std::uint32_t* keys, std::uint32_t* bits,
                                     BlockCounter<kWarps>& counter) {
    const int words = (a.slots.count + 31) / 32;
    for (int w = int(threadIdx.x); w < words; w += kThreads) bits[w] = 0;
    __syncthreads();
    if (a.slots.byUse) {
        const int filled = a.slots.filled[head.item], fromEmpty = min(kept, a.slots.count - filled);
        for (int i = int(threadIdx.x); i < fromEmpty; i += kThreads)
            atomicOr(bits + (filled + i) / 32, 1u << ((filled + i) % 32));
        if (kept > fromEmpty) {
            for (int page = int(threadIdx.x); page < head.complete; page += kThreads)
                keys[page] = head.slotOf[page] > 0 && !isIn(united, page) ? unsigned(now - head.usedAt[page]) + 1u : 0u;
            __syncthreads();
            takeLargest(keys, head.complete, kept - fromEmpty, counter, [&](int page) {
                const int slot = head.slotOf[page] - 1;
                atomicOr(bits + slot / 32, 1u << (slot % 32));
            });
        }
        __syncthreads(); // all have read how many are filled
        if (threadIdx.x == 0) a.slots.filled[head.item] = filled + fromEmpty;
    } else {
        for (int slot = int(threadIdx.x); slot < a.slots.count; slot += kThreads) {
            const int page = head.pageIn[slot] - 1;
            if (page < 0 || !isIn(united, page)) atomicOr(bits + slot / 32, 1u << (slot % 32));
        }
        __syncthreads();
    }
    listBits(words, a.freeSlots + std::size_t(head.item) * a.slots.count, counter, [&](int w) { return bits[w]; });
    __syncthreads();
}

/// A thread block's shared memory for giving slots: [complete pages] and [slots], see listFreeSlots.
struct SlotRoom {
    std::uint32_t *keys, *bits;
};

/// Pages that have no slot, ascending, and how many of them get one.
struct Misses {
    const std::int32_t* pages;
    int count, kept;
};

/// Finds which of the complete pages of a set have no slot. Calls lacking(w, missing) for each word of the set. The
/// others count as used now. All threads call this; ends with a barrier
template <class Lacking>
__device__ inline Misses findMisses(const PrefixPagesArgs& a, const PrefixHead& head, int words,
                                    const std::uint32_t* set, int now, const SlotRoom& room,
                                    BlockCounter<kWarps>& counter, Lacking&& lacking) {
    std::int32_t* const missing = a.missing + std::size_t(head.item) * a.maxPages;
    int there = 0;
    const int misses = listBits(words, missing, counter, [&](int w) {
        std::uint32_t none = 0;
        for (std::uint32_t left = set[w]; left != 0; left &= left - 1) {
            const int page = w * 32 + __ffs(int(left)) - 1;
            if (page >= head.complete) continue;
            if (head.slotOf[page] == 0) {
                none |= left & (0u - left);
            } else {
                head.usedAt[page] = now;
                ++there;
            }
        }
        lacking(w, none);
        return none;
    });
    there = counter.sum(there); // its barrier also completes `missing`
    const int kept = min(misses, a.slots.count - there);
    if (kept > 0) listFreeSlots(a, head, set, kept, now, room.keys, room.bits, counter);
    return {missing, misses, kept};
}

/// Gives the miss its slot. One thread calls it for each miss that gets one. @return the slot
__device__ inline int takeSlot(const PrefixPagesArgs& a, const PrefixHead& head, const Misses& misses, int miss,
                               int now) {
    const int page = misses.pages[miss], slot = a.freeSlots[std::size_t(head.item) * a.slots.count + miss],
              before = head.pageIn[slot] - 1;
    if (before >= 0) head.slotOf[before] = 0;
    head.pageIn[slot] = page + 1;
    head.slotOf[page] = slot + 1;
    head.usedAt[page] = now;
    return slot;
}

/// Reports what came of the pages that the head had asked for.
__device__ inline void compareAsked(const PrefixPagesArgs& a, const PrefixHead& head, int words,
                                    const std::uint32_t* united, bool asks, BlockCounter<kWarps>& counter) {
    int predicted = 0, used = 0, wasted = 0;
    const std::size_t first = std::size_t(head.item) * words;
    for (int w = int(threadIdx.x); asks && w < words; w += kThreads) {
        const std::uint32_t asked = a.ahead.asked[first + w];
        predicted += __popc(asked);
        used += __popc(asked & united[w]);
        wasted += __popc(a.ahead.travelled[first + w] & ~united[w]);
    }
    predicted = counter.sum(predicted), used = counter.sum(used), wasted = counter.sum(wasted);
    if (threadIdx.x == 0) a.ahead.came[head.item] = asks ? AskedPages{predicted, used, wasted} : AskedPages{-1, 0, 0};
}

/// Gives slots to the pages of the union that have none, as long as there are any, and lists the loads.
__device__ inline void giveSlots(const PrefixPagesArgs& a, const PrefixHead& head, bool asks, int words,
                                 const SlotRoom& room, BlockCounter<kWarps>& counter, unsigned& shared) {
    const std::size_t firstWord = std::size_t(head.item) * words;
    const std::uint32_t* const united = a.united + firstWord;
    const bool compares = a.ahead.asked != nullptr;
    asks = asks && compares;
    if (compares) compareAsked(a, head, words, united, asks, counter);
    // Where pages were asked for, this forward's turn has begun.
    const int turn = a.slots.turn[head.item], now = asks ? turn : turn + 1;
    const Misses misses = findMisses(a, head, words, united, now, room, counter, [&](int w, std::uint32_t none) {
        const std::uint32_t travelled = asks ? a.ahead.travelled[firstWord + w] : 0;
        a.hits[firstWord + w] = united[w] & ~none & ~travelled;
    });
    if (threadIdx.x == 0) {
        a.slots.turn[head.item] = now; // all have read it: findMisses has barriers
        if (misses.count > 0) atomicAdd(a.moves.counts + PrefixPagesArgs::kLoads, unsigned(misses.count));
    }
    const unsigned first = reserve(a.moves.counts + PrefixPagesArgs::kMoves, unsigned(misses.count), shared);
    const StoreUnits units(a);
    for (int i = int(threadIdx.x); i < misses.count; i += kThreads) {
        const std::int64_t from = head.window + misses.pages[i];
        const std::int64_t to = i < misses.kept ? head.firstSlot + takeSlot(a, head, misses, i, now) : from;
        a.moves.loads[first + unsigned(i)] = {units.ofStore(from), to};
    }
    __syncthreads();
    const std::size_t list = std::size_t(head.item) * a.maxPages;
    for (int i = int(threadIdx.x); i < a.count[head.item]; i += kThreads) {
        const int page = a.pages[list + i], slot = page < head.complete ? head.slotOf[page] : 0;
        a.places[list + i] = slot > 0 ? int(head.firstSlot + slot - 1 - head.window) : page;
    }
}

/// Grid (kvHeads, rows): a thread block has a (row, KV head), whose slots nobody else touches.
__global__ void __launch_bounds__(kThreads) askKernel(const __grid_constant__ AskPagesArgs args, int words) {
    extern __shared__ std::uint32_t raw[]; // as in prefixKernel
    __shared__ BlockCounter<kWarps>::Shared counts;
    __shared__ unsigned shared;
    letNextKernelStart();
    waitForEarlierKernels();
    const PrefixPagesArgs& a = args.pages;
    const int g = int(blockIdx.x), row = int(blockIdx.y);
    const BlockRow of = a.rows.table[row];
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kAsks)) return;
    const PrefixHead head(a, of, row, g);
    BlockCounter<kWarps> counter(counts);
    const std::size_t firstWord = std::size_t(head.item) * words;
    std::uint32_t *const asked = a.ahead.asked + firstWord, *const travelled = a.ahead.travelled + firstWord;
    for (int w = int(threadIdx.x); w < words; w += kThreads) {
        std::uint32_t word = args.foreseen[firstWord + w];
        if (of.is(BlockRow::kAsksAgain)) word |= args.before[firstWord + w];
        const int complete = head.complete - w * 32; // pages of the word
        if (complete < 32) word &= complete > 0 ? (1u << complete) - 1 : 0u;
        asked[w] = word;
        travelled[w] = 0;
    }
    __syncthreads();
    const int now = a.slots.turn[head.item] + 1;
    const Misses misses =
        findMisses(a, head, words, asked, now, {raw, raw + a.maxPages}, counter, [](int, std::uint32_t) {});
    if (threadIdx.x == 0) a.slots.turn[head.item] = now; // all have read it: findMisses has barriers
    const unsigned first = reserve(a.moves.counts, unsigned(misses.kept), shared);
    const StoreUnits units(a);
    for (int i = int(threadIdx.x); i < misses.count; i += kThreads) {
        const int page = misses.pages[i];
        const std::uint32_t bit = 1u << (page % 32);
        if (i >= misses.kept) {
            atomicAnd(asked + page / 32, ~bit);
            continue;
        }
        atomicOr(travelled + page / 32, bit);
        a.moves.loads[first + unsigned(i)] = {units.ofStore(head.window + page),
                                              std::int64_t(head.item) * a.slots.count +
                                                  takeSlot(a, head, misses, i, now)};
    }
}

/// Grid (rows), a thread for each token.
__global__ void __launch_bounds__(kMostDenoised) askingKernel(NameAskingArgs a) {
    __shared__ unsigned bits[2];
    letNextKernelStart();
    waitForEarlierKernels();
    const int row = int(blockIdx.x), i = int(threadIdx.x), block = a.rows.block, heads = a.rows.shape.kvHeads;
    const BlockRow of = a.rows.table[row];
    if (i < 2) bits[i] = 0;
    __syncthreads();
    if (of.is(BlockRow::kTaken) && i < block) {
        const std::int32_t id = a.ids[row * block + i];
        const bool written = id != a.last[row * block + i];
        a.last[row * block + i] = id;
        if (of.is(BlockRow::kAsks) && (written || of.is(BlockRow::kAsksAll))) atomicOr(&bits[i / 32], 1u << (i % 32));
    }
    __syncthreads();
    for (int g = i; g < heads; g += kMostDenoised) a.asking[row * heads + g] = std::uint64_t(bits[1]) << 32 | bits[0];
}

/// Grid (block, rows).
__global__ void __launch_bounds__(kThreads) roundKernel(BlockRows rows, const float* before, Bf16* q) {
    letNextKernelStart();
    waitForEarlierKernels();
    const BlockRow of = rows.table[blockIdx.y];
    if (!of.is(BlockRow::kTaken) || !of.is(BlockRow::kAsks)) return;
    const int width = rows.shape.queryHeads * rows.shape.dim;
    const std::size_t first = (std::size_t(blockIdx.y) * std::size_t(rows.block) + blockIdx.x) * std::size_t(width);
    for (int c = int(threadIdx.x); c < width; c += kThreads) q[first + c] = __float2bfloat16(before[first + c]);
}

/// Grid (kvHeads, rows): a thread block has a (row, KV head), whose slots nobody else touches.
__global__ void __launch_bounds__(kThreads) prefixKernel(const __grid_constant__ PrefixPagesArgs a, int words) {
    extern __shared__ std::uint32_t room[]; // [maxPages] keys, then [slots] bits
    __shared__ BlockCounter<kWarps>::Shared counts;
    __shared__ unsigned shared;
    letNextKernelStart();
    const int g = int(blockIdx.x), row = int(blockIdx.y), bs = a.rows.shape.blockSize;
    const BlockRow of = a.rows.table[row]; // copies alone write it
    waitForEarlierKernels();
    if (!of.is(BlockRow::kTaken)) return;
    const PrefixHead head(a, of, row, g);
    BlockCounter<kWarps> counter(counts);
    if (of.is(BlockRow::kClean)) {
        const StoreUnits units(a);
        const int end = (of.first + a.rows.block) / bs; // pages that are complete behind the block
        for (int page = head.complete + int(threadIdx.x); page < end; page += kThreads)
            a.moves.writeBacks[atomicAdd(a.moves.counts + PrefixPagesArgs::kStores, 1u)] = {
                units.ofStore(head.window + page), head.window + page};
    }
    if (of.is(BlockRow::kSparse))
        giveSlots(a, head, of.is(BlockRow::kAsks), words, {room, room + a.maxPages}, counter, shared);
    else
        moveWhole(a, head, counter, shared);
}

/// Grid (kvHeads, rows). restores: from the tails to the window, else the other way
__global__ void __launch_bounds__(kThreads) tailKernel(PrefixTailsArgs a, bool restores) {
    letNextKernelStart();
    const int g = int(blockIdx.x), row = int(blockIdx.y), bs = a.rows.shape.blockSize,
              item = row * a.rows.shape.kvHeads + g;
    const BlockRow of = a.rows.table[row];
    waitForEarlierKernels();
    if (!of.is(BlockRow::kTaken) || (!restores && !of.is(BlockRow::kClean))) return;
    const int end = of.first + (restores ? 0 : a.rows.block); // of the prefix
    if (end % bs == 0) return;
    const std::size_t elements = blockElements(bs, a.rows.shape.dim);
    uint4* const page = reinterpret_cast<uint4*>(
        a.blocks + std::size_t(a.rows.headFirst[of.sequence * a.rows.shape.kvHeads + g] + end / bs) * elements);
    uint4* const tail = reinterpret_cast<uint4*>(a.tails + std::size_t(item) * elements);
    const uint4* const from = restores ? tail : page;
    uint4* const to = restores ? page : tail;
    for (int i = int(threadIdx.x); i < int(elements / 8); i += kThreads) to[i] = from[i];
}

std::size_t roomOf(int maxPages, int slots) {
    return (std::size_t(maxPages) + std::size_t(slots + 31) / 32) * sizeof(std::uint32_t);
}

void moveTails(const Launch& how, const PrefixTailsArgs& args, bool restores, const char* what) {
    if (args.rows.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)), dim3(kThreads)}, tailKernel, what,
           args, restores);
}

} // namespace

void checkPrefixPages(const Launch& how, int maxPages, int slots) {
    checkRanked(how, maxPages, roomOf(maxPages, slots), "pages", "page");
}

void placePrefixPages(const Launch& how, const PrefixPagesArgs& args) {
    if (args.rows.rows == 0 || args.maxPages == 0) return;
    const Grid grid{dim3(unsigned(args.rows.shape.kvHeads), unsigned(args.rows.rows)), dim3(kThreads),
                    roomOf(args.maxPages, args.slots.count)};
    raiseShared(prefixKernel, grid.sharedBytes, "preparing the pages of a prefix");
    launch(how, grid, prefixKernel, "placing the pages of a prefix", args, args.wordsOf());
}

void nameAsking(const Launch& how, const NameAskingArgs& args) {
    if (args.rows.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows.rows)), dim3(kMostDenoised)}, askingKernel, "naming asking tokens", args);
}

void roundQueries(const Launch& how, const BlockRows& rows, const float* before, Bf16* q) {
    if (rows.rows == 0) return;
    launch(how, {dim3(unsigned(rows.block), unsigned(rows.rows)), dim3(kThreads)}, roundKernel, "rounding queries",
           rows, before, q);
}

void askPrefixPages(const Launch& how, const AskPagesArgs& args) {
    const PrefixPagesArgs& pages = args.pages;
    if (pages.rows.rows == 0 || pages.maxPages == 0) return;
    const Grid grid{dim3(unsigned(pages.rows.shape.kvHeads), unsigned(pages.rows.rows)), dim3(kThreads),
                    roomOf(pages.maxPages, pages.slots.count)};
    raiseShared(askKernel, grid.sharedBytes, "preparing to ask for pages");
    launch(how, grid, askKernel, "asking for pages", args, pages.wordsOf());
}

void restorePrefixTails(const Launch& how, const PrefixTailsArgs& args) {
    moveTails(how, args, true, "restoring incomplete pages");
}

void keepPrefixTails(const Launch& how, const PrefixTailsArgs& args) {
    moveTails(how, args, false, "keeping incomplete pages");
}

} // namespace kvscope::cuda
