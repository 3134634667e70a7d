#include "kernels/cuda/select.h"

#include "kernels/cuda/attention_latent.h"
#include "kernels/cuda/select_scores.cuh"
#include "kernels/cuda/select_slots.cuh"
#include "kernels/cuda/shared_room.cuh"

#include <algorithm>
#include <type_traits>

namespace kvscope::cuda {

SelectPlan::SelectPlan(const SelectArgs& a, int ranks)
    : group(a.score == SelectArgs::Score::PooledProduct ? 1 : a.shape.group()),
      blocksPerRank((a.maxBlocks + ranks - 1) / ranks), byStride(a.index.stride), byBlock(a.shape.blockSize),
      byHeads(a.shape.kvHeads) {
    while (1 << rankShift < ranks) ++rankShift;
    const bool softmax = a.score == SelectArgs::Score::PooledSoftmax;
    if (softmax || a.score == SelectArgs::Score::PooledProduct)
        windowsPerRank =
            (blocksPerRank * a.shape.blockSize / a.index.stride + a.index.kernel / a.index.stride + 8) / 8 * 8;
    stride = (windowsPerRank + kUnitWindows + 23) / 32 * 32 + 8;
    const auto take = [&](std::size_t bytes) {
        const std::size_t here = total;
        total = (total + bytes + 15) / 16 * 16;
        return unsigned(here);
    };
    const auto blocks = std::size_t(a.maxBlocks), heads = std::size_t(group), slots = std::size_t(a.slots);
    // The range bound keeps the queries here instead.
    exponentials = take(heads * 4 *
                        std::size_t(a.score == SelectArgs::Score::RangeBound ? a.shape.dim
                                    : windowsPerRank > 0                     ? stride
                                                                             : 0));
    references = take(softmax ? heads * 4 * std::size_t(units()) : 0);
    windowSums = take(softmax ? std::size_t(windowsPerRank) * 4 : 0);
    aware = take(blocks * 4);
    agnostic = take(a.agnostic ? blocks * 4 : 0);
    origin = take(blocks);
    listAt = take(slots > 0 ? blocks * 2 : 0);
    freeSlots = take(slots * 4);
    slotUse = take(a.lastUse != nullptr ? slots * 8 : 0); // and the blocks in them
    list = take(std::size_t(a.capacity) * 8);             // blocks, then slots
}

namespace {

template <int kDim, int kItems>
__global__ void __launch_bounds__(kSelectThreads, kItems > 8 ? 1 : 2) selectKernel(SelectArgs a, SelectPlan plan) {
    using Score = SelectArgs::Score;
    extern __shared__ uint4 raw[];
    __shared__ SelectSmall small;
    const SelectShared shared(reinterpret_cast<char*>(raw), plan, a);
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    letNextKernelStart();
    cluster.barrier_arrive(); // a block's shared memory exists for others once it has started

    // Positions change only at a step's end, so they may be read before the wait.
    SelectItem at;
    at.item = int(blockIdx.x) >> plan.rankShift;
    at.row = plan.byHeads(at.item);
    at.head = (a.oneSequence ? a.sequence : at.row) * a.shape.kvHeads + at.item - at.row * a.shape.kvHeads;
    at.position = a.position[at.row];
    at.tokens = at.position + 1;
    at.current = plan.byBlock(at.position);
    at.blocks = at.current + 1;
    at.dense = at.tokens < a.denseBelowTokens;
    at.firstToken = a.slidingWindow > 0 ? max(0, at.tokens - a.slidingWindow) : 0;
    at.firstBlock = plan.byBlock(at.firstToken);
    const bool active = a.active == nullptr || a.active[at.row] != 0;
    const bool reports = at.item == 0 && rank == 0 && threadIdx.x == 0;
    const bool product = a.score == Score::PooledProduct;
    const bool pooled = !at.dense && (product || a.score == Score::PooledSoftmax);
    const WindowGrid grid(a, plan);
    const int windows = grid.windows(at.tokens - a.unseen);
    const int inSight = at.blocks - at.firstBlock;
    const RankWindows range = grid.of(at, windows, rank, (inSight + ranks - 1) >> plan.rankShift);
    const std::int64_t firstWindow = pooled || a.agnostic ? a.index.windowFirst[at.head] : 0;
    const Bf16* keys = a.index.pooledKeys + std::size_t(firstWindow) * kDim;
    waitForEarlierKernels();
    if (reports) stamp(a.marks[0]);
    cluster.barrier_wait();
    if (!active) return; // the whole cluster leaves

    // ---- Scores of this rank's blocks, sent to rank 0
    SelectState<kDim, kItems> state;
    if (rank == 0) state.ask(a, at);
    const bool agnostic = a.agnostic && !at.dense;
    const float* agnosticScores = a.index.pooledScores + firstWindow;
    const auto agnosticOf = [&](int b) {
        const bool here = agnostic && b < range.endBlock;
        return AgnosticScore(agnosticScores, here ? grid.first(b) : 0, here ? grid.end(b, windows) : 0);
    };
    const int mineFirst = range.firstBlock + int(threadIdx.x);
    const AgnosticScore early = agnosticOf(mineFirst);
    float* awareAtRank0 = cluster.map_shared_rank(shared.aware, 0);
    float* agnosticAtRank0 = cluster.map_shared_rank(shared.agnostic, 0);
    const Bf16* q = a.q + std::size_t(at.item) * plan.group * kDim;
    if (pooled) {
        scoreWindows<kDim>(a, q, keys, plan.group, range, shared, plan.stride, small);
        if (product)
            __syncthreads();
        else
            sumOverGroup(cluster, plan.group, range, shared, plan.stride, small);
        const float* sums = product ? shared.exponentials : shared.windowSums; // the products of the only query
        for (int b = mineFirst; b < range.endBlock; b += kSelectThreads) {
            float best = grid.first(b) < range.begin ? 0.f : -INFINITY; // windows out of sight: nothing
            for (int c = max(grid.first(b), range.begin), end = grid.end(b, windows); c < end; ++c)
                best = fmaxf(best, sums[c - range.begin]);
            awareAtRank0[b] = best;
        }
    } else if (!at.dense && a.score == Score::RangeBound) {
        boundRanges<kDim>(a, q, plan.group, at.head, range, shared.exponentials, awareAtRank0);
    } else if (!at.dense && a.score == Score::Given) {
        const float* scores = a.givenScores + std::size_t(at.item) * a.maxBlocks;
        for (int b = mineFirst; b < range.endBlock; b += kSelectThreads) awareAtRank0[b] = scores[b];
    }
    if (agnostic && mineFirst < range.endBlock) {
        agnosticAtRank0[mineFirst] = early.largest();
        for (int b = mineFirst + kSelectThreads; b < range.endBlock; b += kSelectThreads)
            agnosticAtRank0[b] = agnosticOf(b).largest();
    }
    cluster.sync(); // rank 0 has everything; nobody reads this block's shared memory any more
    if (rank != 0) return;

    // ---- Two-phase top-k
    if (reports) stamp(a.marks[1]);
    if (a.planted >= 0) plantScores(a, at, shared);
    SelectCounter counter(small.counts);
    std::uint8_t mine[kItems];
    chooseBlocks<kItems>(a, at, shared, mine, small, counter);

    // ---- Lists and slots
    if (reports) stamp(a.marks[2]);
    writeLists<kDim, kItems>(a, at, shared, state, mine, small, counter);
}

} // namespace

void selectBlocksOnDevice(const Launch& how, const SelectArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const int items = args.rows * args.shape.kvHeads;
    int ranks = 1;
    if (how.clusters) // few blocks are not worth a cluster; thread blocks that wait for a processor cost more than they
                      // bring
        while (ranks < kSelectCluster && args.maxBlocks > ranks * 32 && items * ranks * 2 <= how.multiprocessors)
            ranks *= 2;
    const auto choose = [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        return args.maxBlocks <= 2 * kSelectThreads   ? selectKernel<kDim, 2>
               : args.maxBlocks <= 8 * kSelectThreads ? selectKernel<kDim, 8>
                                                      : selectKernel<kDim, kMostSelectItems>;
    };
    const auto kernel = args.shape.dim == kLatentDim        ? choose(std::integral_constant<int, kLatentDim>{})
                        : args.shape.dim == kSmallLatentDim ? choose(std::integral_constant<int, kSmallLatentDim>{})
                        : args.shape.dim == 64              ? choose(std::integral_constant<int, 64>{})
                                                            : choose(std::integral_constant<int, 128>{});
    const std::size_t room = sharedRoom(how, kernel);
    while (how.clusters && ranks < kSelectCluster && SelectPlan(args, ranks).total > room) ranks *= 2;
    const SelectPlan plan(args, ranks);
    if (plan.total > room || args.maxBlocks > kMostSelectItems * kSelectThreads)
        refuseContext(args.maxBlocks, args.shape.blockSize);
    const Grid grid{dim3(unsigned(items * ranks)), dim3(kSelectThreads), plan.total, unsigned(ranks)};
    raiseShared(kernel, plan.total, "preparing the selection");
    launch(how, grid, kernel, "selecting blocks", args, plan);
}

} // namespace kvscope::cuda
