#include "kernels/cuda/choice/select.h"

#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/choice/select_scores.cuh"
#include "kernels/cuda/choice/select_slots.cuh"
#include "kernels/cuda/device/shared_room.cuh"

#include <type_traits>

namespace kvscope::cuda {

SelectPlan::SelectPlan(const SelectArgs& a, int ranks)
    : group(a.score == SelectArgs::Score::PooledProduct ? 1 : a.shape.group()),
      blocksPerRank((a.maxBlocks + ranks - 1) / ranks), byStride(a.index.stride), byBlock(a.shape.blockSize),
      byHeads(a.shape.kvHeads), byRanks(ranks), byGroup(group) {
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
    const auto blocks = std::size_t(a.maxBlocks), heads = std::size_t(group), slots = std::size_t(a.slots.count);
    // With key ranges the queries lie here, as no softmax is taken.
    exponentials = take(heads * 4 *
                        std::size_t(a.score == SelectArgs::Score::RangeBound ? a.shape.dim
                                    : windowsPerRank > 0                     ? stride
                                                                             : 0));
    references = take(softmax ? heads * 4 * std::size_t(units()) : 0);
    aware = take(blocks * 4);
    agnostic = take(a.agnostic ? blocks * 4 : 0);
    origin = take(a.chosen.blocks != nullptr ? blocks : 0);
    slotOf = take(slots > 0 ? blocks * 2 : 0);
    freeSlots = take(slots * 4);
    slotUse = take(a.slots.lastUse != nullptr ? slots * 4 : 0);
    blockIn = take(slots * 4);
    freeBits = take((slots + kWarp - 1) / kWarp * 4);
}

namespace {

template <int kDim, class Team>
__global__ void __launch_bounds__(Team::kThreads, 512 / Team::kThreads) selectKernel(SelectArgs a, SelectPlan plan) {
    using Score = SelectArgs::Score;
    extern __shared__ uint4 raw[];
    __shared__ SelectSmall<Team> small;
    __shared__ SelectSets<Team> sets;
    const SelectShared shared(reinterpret_cast<char*>(raw), plan, a);
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    letNextKernelStart();
    if (rank == 0) small.clear();
    cluster.barrier_arrive(); // others may write to a thread block's shared memory only once it has started

    // Positions change only at a step's end, so they may be read before the wait.
    SelectItem at;
    at.item = plan.byRanks(int(blockIdx.x));
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
    const RankWindows range = grid.of(at, windows, rank, plan.byRanks(inSight + ranks - 1));
    const Bf16* keys = a.index.pooledKeys + std::size_t(pooled ? a.index.windowFirst[at.head] : 0) * kDim;
    const auto reachOf = [&](int b) { return make_int2(grid.first(b), grid.end(b, windows)); }; // windows of a block
    const int mineFirst = range.firstBlock + int(threadIdx.x);
    const int2 mineReach = reachOf(mineFirst);
    // A warp loads its first unit of pooled keys before the wait if earlier steps have completed all of its windows.
    // The newest window may be written by a kernel of this step.
    const int firstUnit = range.begin + int(threadIdx.x) / kWarp * kUnitWindows;
    const bool keysAhead = UnitKeys<kDim>::kKept && pooled && active && firstUnit < range.end;
    const bool known = !a.oneSequence && firstUnit + kUnitWindows < windows;
    UnitKeys<kDim> unitKeys;
    if (keysAhead && known) unitKeys.load(keys, firstUnit, range.end);
    waitForEarlierKernels();
    if (reports) stamp(a.marks.stage1);
    cluster.barrier_wait();
    if (!active) return; // the whole cluster leaves

    if (keysAhead && !known) unitKeys.load(keys, firstUnit, range.end);

    // ---- Scores of this rank's blocks, sent to rank 0
    SelectState<kDim, Team> state;
    const bool agnostic = a.agnostic && !at.dense;
    const float* agnosticScores = agnostic ? a.index.pooledScoresOf(at.head) : nullptr;
    const auto agnosticOf = [&](int b, int2 reach) {
        const bool here = agnostic && b < range.endBlock;
        return AgnosticScore(agnosticScores, here ? reach.x : 0, here ? reach.y : 0);
    };
    const AgnosticScore early = agnosticOf(mineFirst, mineReach);
    const auto ask = [&] { // called where rank 0 waits for the others
        if (rank == 0) state.ask(a, at);
    };
    float* awareAtRank0 = cluster.map_shared_rank(shared.aware, 0);
    float* agnosticAtRank0 = cluster.map_shared_rank(shared.agnostic, 0);
    const Bf16* q = a.q + std::size_t(at.item) * plan.group * kDim;
    if (pooled) {
        scoreWindows<kDim, Team>(a, q, keys, plan.group, range, unitKeys, shared, plan.stride, small);
        if (product)
            __syncthreads();
        else
            sumOverGroup<Team>(cluster, plan.group, plan.byGroup, range, shared, plan.stride, small, ask);
        const float* sums = shared.exponentials; // with Score::PooledProduct the products of the only query
#pragma unroll 1
        for (int b = mineFirst; b < range.endBlock; b += Team::kThreads) {
            const int2 reach = b == mineFirst ? mineReach : reachOf(b);
            float best = reach.x < range.begin ? 0.f : -INFINITY; // a window before the sliding window counts as 0
            for (int c = max(reach.x, range.begin); c < reach.y; ++c) best = fmaxf(best, sums[c - range.begin]);
            awareAtRank0[b] = best;
        }
    } else if (!at.dense && a.score == Score::RangeBound) {
        boundRanges<kDim, Team>(a, q, plan.group, at.head, range, shared.exponentials, awareAtRank0);
    } else if (!at.dense && a.score == Score::Given) {
        const float* scores = a.givenScores + std::size_t(at.item) * a.maxBlocks;
#pragma unroll 1
        for (int b = mineFirst; b < range.endBlock; b += Team::kThreads) awareAtRank0[b] = scores[b];
    }
    if (agnostic && mineFirst < range.endBlock) {
        agnosticAtRank0[mineFirst] = early.largest();
#pragma unroll 1
        for (int b = mineFirst + Team::kThreads; b < range.endBlock; b += Team::kThreads)
            agnosticAtRank0[b] = agnosticOf(b, reachOf(b)).largest();
    }
    cluster.barrier_arrive();
    if (!pooled || product) ask();
    const SelectForced forced(a, at);
    std::uint8_t origins[Team::kItems];
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) origins[i] = forced.originOf(Team::blockOf(i));
    cluster.barrier_wait(); // rank 0 has all scores; no other rank reads this thread block's shared memory any more
    if (rank != 0) return;

    // ---- Two-phase top-k
    if (reports) stamp(a.marks.pooling);
    if (a.planted.share >= 0 || a.planted.streams != nullptr) plantScores<Team>(a, at, shared);
    if (a.chosen.blocks != nullptr && !at.dense)
        takeChosen<Team>(a, at, shared, origins);
    else
        chooseBlocks<Team>(at, forced, shared, origins, small, sets.chosen);

    // ---- Lists and slots
    if (reports) stamp(a.marks.offloading);
    writeLists<kDim, Team>(a, at, shared, state, origins, small, sets);
}

using SelectKernel = void (*)(SelectArgs, SelectPlan);

/// How many thread blocks an item gets: the most that are worth it while the thread blocks of all items run at once and
/// leave enough cache for loads; else the most with which they run in two turns; else the fewest in whose shared memory
/// the context fits. 0: the context fits in none.
int ranksOf(const Launch& how, const SelectArgs& args, SelectKernel kernel, Grid grid) {
    constexpr int kLarge = 8;                       // larger clusters are worth it only with more KV blocks for each
    constexpr std::size_t kLeavesCache = 128 << 10; // so much shared memory leaves enough of 256 KiB as cache
    // Short lists: a multiprocessor holds two thread blocks, and other kernels that run beside need room as well.
    const bool paired = args.maxBlocks <= ShortSelect::kBlocks;
    const int items = args.rows * args.shape.kvHeads, wanted = items + (paired ? items / 5 : 0);
    const std::size_t room = sharedRoom(how, kernel);
    const auto atOnce = [&] { return knownClustersAtOnce(grid, kernel, "preparing the selection"); };
    int fewest = 0;
    for (const int turns : {1, 2})
        for (int ranks = how.clusters ? kSelectCluster : 1; ranks > 0; --ranks) {
            grid.cluster = unsigned(ranks);
            grid.sharedBytes = SelectPlan(args, ranks).total;
            if (grid.sharedBytes > room) break;
            if (ranks > 1 && atOnce() == 0) continue;
            fewest = ranks;
            const bool pays = args.maxBlocks > ranks * (ranks > kLarge ? 64 : 16);
            const bool crowded = items * ranks * 2 > how.multiprocessors * turns * (paired ? 3 : 2);
            if (!pays || crowded || (turns == 1 && grid.sharedBytes > kLeavesCache)) continue;
            if (ranks == 1 || atOnce() * turns >= wanted) return ranks;
        }
    return fewest;
}

} // namespace

void selectBlocksOnDevice(const Launch& how, const SelectArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const bool brief = args.maxBlocks <= ShortSelect::kBlocks;
    const auto choose = [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        return brief                                   ? selectKernel<kDim, ShortSelect>
               : args.maxBlocks <= LongSelect::kBlocks ? selectKernel<kDim, LongSelect>
                                                       : selectKernel<kDim, LongestSelect>;
    };
    const auto kernel = args.shape.dim == kLatentDim        ? choose(std::integral_constant<int, kLatentDim>{})
                        : args.shape.dim == kSmallLatentDim ? choose(std::integral_constant<int, kSmallLatentDim>{})
                        : args.shape.dim == 64              ? choose(std::integral_constant<int, 64>{})
                                                            : choose(std::integral_constant<int, 128>{});
    Grid grid{dim3(1), dim3(brief ? ShortSelect::kThreads : LongSelect::kThreads)};
    const int ranks = ranksOf(how, args, kernel, grid);
    if (ranks == 0 || args.maxBlocks > LongestSelect::kBlocks) refuseContext(args.maxBlocks, args.shape.blockSize);
    const SelectPlan plan(args, ranks);
    grid.blocks = dim3(unsigned(args.rows * args.shape.kvHeads * ranks));
    grid.cluster = unsigned(ranks);
    grid.sharedBytes = plan.total;
    raiseShared(kernel, plan.total, "preparing the selection");
    launch(how, grid, kernel, "selecting blocks", args, plan);
}

} // namespace kvscope::cuda
