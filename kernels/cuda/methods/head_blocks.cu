#include "kernels/cuda/methods/head_blocks.h"

#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/choice/token_choice.cuh"
#include "kernels/cuda/device/launch.cuh"

#include "kernels/cuda/device/ranking.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr std::uint32_t kAbsent = PackedBlock(PackedBlock::kMaxId, Origin::Sink, false).word();

/// Grid: (rows*kvHeads). Shared memory has for every block the rank of its best score plus one, its origin and its
/// place in the union.
__global__ void __launch_bounds__(kThreads) uniteKernel(UniteBlocksArgs a) {
    extern __shared__ std::uint32_t shared[];
    __shared__ BlockCounter<kWarps>::Shared counts;
    std::uint32_t *entry = shared, *best = shared + a.maxBlocks, *place = best + a.maxBlocks;
    const int item = blockIdx.x, row = item / a.shape.kvHeads, group = a.shape.queryHeads / a.shape.kvHeads;
    letNextKernelStart();
    const bool active = a.active == nullptr || a.active[row] != 0;
    for (int b = threadIdx.x; b < a.maxBlocks; b += kThreads) entry[b] = kAbsent, best[b] = 0;
    __syncthreads();
    waitForEarlierKernels();
    if (!active) return;
    for (int h = 0; h < group; ++h) { // a block has the same origin for all heads
        const std::size_t first = std::size_t(item * group + h) * a.capacity;
        const int count = a.count[item * group + h];
        for (int i = threadIdx.x; i < count; i += kThreads) {
            const PackedBlock block = a.blocks[first + i];
            const int b = block.id();
            entry[b] = block.withHit(false).word();
            best[b] = max(best[b], rankOf(a.scores[first + i]));
        }
        __syncthreads();
    }
    const int perThread = (a.maxBlocks + kThreads - 1) / kThreads,
              begin = min(int(threadIdx.x) * perThread, a.maxBlocks), end = min(begin + perThread, a.maxBlocks);
    int mine = 0, total = 0;
    for (int b = begin; b < end; ++b) mine += entry[b] != kAbsent ? 1 : 0;
    BlockCounter<kWarps> counter(counts);
    int at = counter.prefix(mine, total);
    const std::size_t to = std::size_t(item) * a.capacity;
    for (int b = begin; b < end; ++b) {
        if (entry[b] == kAbsent) continue;
        a.chosen[to + at] = PackedBlock::ofWord(entry[b]);
        a.chosenScores[to + at] = scoreOf(best[b]);
        place[b] = std::uint32_t(at++);
    }
    if (threadIdx.x == 0) a.chosenCount[item] = total;
    __syncthreads();
    for (int h = 0; h < group; ++h) {
        const std::size_t first = std::size_t(item * group + h) * a.capacity;
        const int count = a.count[item * group + h];
        for (int i = threadIdx.x; i < count; i += kThreads)
            a.places[first + i] = std::int32_t(place[a.blocks[first + i].id()]);
    }
}

/// Grid: (rows*queryHeads).
__global__ void __launch_bounds__(kThreads) slotsKernel(HeadSlotsArgs a) {
    const int head = blockIdx.x, row = head / a.shape.queryHeads, item = head / (a.shape.queryHeads / a.shape.kvHeads);
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const std::size_t first = std::size_t(head) * a.capacity;
    const int count = a.count[head];
    for (int i = threadIdx.x; i < count; i += kThreads)
        a.slots[first + i] = a.unitedSlots[std::size_t(item) * a.capacity + a.places[first + i]];
}

} // namespace

void uniteBlocks(const Launch& how, const UniteBlocksArgs& args) {
    if (args.rows == 0) return;
    const std::size_t bytes = std::size_t(args.maxBlocks) * 12; // selectBlocksOnDevice takes at most 8192 blocks
    allowShared(uniteKernel, bytes, "preparing the selection");
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kThreads), bytes}, uniteKernel,
           "uniting the heads' blocks", args);
}

void takeHeadSlots(const Launch& how, const HeadSlotsArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.shape.queryHeads)), dim3(kThreads)}, slotsKernel,
           "finding the heads' slots", args);
}

} // namespace kvscope::cuda
