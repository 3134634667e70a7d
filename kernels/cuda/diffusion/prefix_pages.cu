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
                keys[page] = head.slotOf[page] > 0 && !isIn(united, page) ? unsigned(now - head.usedAt[page]) : 0u;
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

/// Gives slots to the pages of the union that have none, as long as there are any, and lists the loads.
__device__ inline void giveSlots(const PrefixPagesArgs& a, const PrefixHead& head, int words, std::uint32_t* keys,
                                 std::uint32_t* bits, BlockCounter<kWarps>& counter, unsigned& shared) {
    const std::uint32_t* const united = a.united + std::size_t(head.item) * words;
    std::uint32_t* const hits = a.hits + std::size_t(head.item) * words;
    std::int32_t* const missing = a.missing + std::size_t(head.item) * a.maxPages;
    const int now = a.slots.turn[head.item] + 1;
    int there = 0;
    const int misses = listBits(words, missing, counter, [&](int w) {
        const std::uint32_t word = united[w];
        std::uint32_t lacking = 0;
        for (std::uint32_t left = word; left != 0; left &= left - 1) {
            const int page = w * 32 + __ffs(int(left)) - 1;
            if (page >= head.complete) continue;
            if (head.slotOf[page] == 0) {
                lacking |= left & (0u - left);
            } else {
                head.usedAt[page] = now;
                ++there;
            }
        }
        hits[w] = word & ~lacking;
        return lacking;
    });
    there = counter.sum(there); // its barrier also completes `missing`
    const int kept = min(misses, a.slots.count - there);
    if (kept > 0) listFreeSlots(a, head, united, kept, now, keys, bits, counter);
    if (threadIdx.x == 0) {
        a.slots.turn[head.item] = now;
        if (misses > 0) atomicAdd(a.moves.counts + PrefixPagesArgs::kLoads, unsigned(misses));
    }
    const unsigned first = reserve(a.moves.counts + PrefixPagesArgs::kMoves, unsigned(misses), shared);
    const StoreUnits units(a);
    const std::int32_t* const freeSlots = a.freeSlots + std::size_t(head.item) * a.slots.count;
    for (int i = int(threadIdx.x); i < misses; i += kThreads) {
        const int page = missing[i];
        std::int64_t to = head.window + page;
        if (i < kept) {
            const int slot = freeSlots[i], before = head.pageIn[slot] - 1;
            if (before >= 0) head.slotOf[before] = 0;
            head.pageIn[slot] = page + 1;
            head.slotOf[page] = slot + 1;
            head.usedAt[page] = now;
            to = head.firstSlot + slot;
        }
        a.moves.loads[first + unsigned(i)] = {units.ofStore(head.window + page), to};
    }
    __syncthreads();
    const std::size_t list = std::size_t(head.item) * a.maxPages;
    for (int i = int(threadIdx.x); i < a.count[head.item]; i += kThreads) {
        const int page = a.pages[list + i], slot = page < head.complete ? head.slotOf[page] : 0;
        a.places[list + i] = slot > 0 ? int(head.firstSlot + slot - 1 - head.window) : page;
    }
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
        giveSlots(a, head, words, room, room + a.maxPages, counter, shared);
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

void restorePrefixTails(const Launch& how, const PrefixTailsArgs& args) {
    moveTails(how, args, true, "restoring incomplete pages");
}

void keepPrefixTails(const Launch& how, const PrefixTailsArgs& args) {
    moveTails(how, args, false, "keeping incomplete pages");
}

} // namespace kvscope::cuda
