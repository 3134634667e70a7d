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
    freeSlots = take(slots * 4);
    slotUse = take(a.slots.lastUse != nullptr ? slots * 4 : 0);
    blockIn = take(slots * 4);
    freeBits = take((slots + kWarp - 1) / kWarp * 4);
}

namespace {

/// kPlain: pooled keys and a softmax over them that HeldScores can hold, no sliding window, no choice made elsewhere.
/// Most launches are so, and the kernel has three quarters of the code: in a step it comes from memory at every launch.
template <int kDim, class Team, bool kPlain>
__global__ void __launch_bounds__(Team::kThreads, 512 / Team::kThreads) selectKernel(SelectArgs a, SelectPlan plan) {
    using Score = SelectArgs::Score;
    constexpr bool kGuesses = !kPlain && kDim <= 128;
    extern __shared__ uint4 raw[];
    __shared__ SelectSmall<Team> small;
    __shared__ SelectSets<Team> sets;
    const SelectShared shared(reinterpret_cast<char*>(raw), plan, a);
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), rank = int(cluster.block_rank());
    letNextKernelStart();
    if (rank == 0) small.clear(), sets.clear();
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
    at.firstToken = !kPlain && a.slidingWindow > 0 ? max(0, at.tokens - a.slidingWindow) : 0;
    at.firstBlock = plan.byBlock(at.firstToken);
    const bool active = a.active == nullptr || a.active[at.row] != 0;
    const bool reports = at.item == 0 && rank == 0 && threadIdx.x == 0;
    const bool product = !kPlain && a.score == Score::PooledProduct;
    const bool agnostic = !at.dense && a.agnostic;
    const bool pooled = !at.dense && (kPlain || product || a.score == Score::PooledSoftmax);
    const WindowGrid grid(a, plan);
    const int windows = grid.windows(at.tokens - a.unseen);
    const int inSight = at.blocks - at.firstBlock;
    const RankWindows range = grid.of(at, windows, rank, plan.byRanks(inSight + ranks - 1));
    const SelectForced forced(a, at);
    const PlantedHead planted(a, at);
    const float* agnosticScores = agnostic ? a.index.pooledScoresOf(at.head) : nullptr;
    const Bf16* keys = a.index.pooledKeys + std::size_t(pooled ? a.index.windowFirst[at.head] : 0) * kDim;
    const auto reachOf = [&](int b) { return make_int2(grid.first(b), grid.end(b, windows)); }; // windows of a block
    const int mineFirst = range.firstBlock + int(threadIdx.x);
    const int2 mineReach = reachOf(mineFirst);
    // A warp loads its first unit of pooled keys before the wait if earlier steps have completed all of its windows.
    // The newest window may be written by a kernel of this step.
    const int firstUnit = range.begin + int(threadIdx.x) / kWarp * kUnitWindows;
    const bool keysAhead = UnitKeys<kDim>::kKept && pooled && active && firstUnit < range.end;
    const bool known = !a.oneSequence && firstUnit + kUnitWindows < windows;
    SelectState<kDim, Team> state;
    if (rank == 0) state.locate(a, at);
    GuessedPair<kDim> guessed;
    if constexpr (kGuesses) guessed.locate(a, at);
    UnitKeys<kDim> unitKeys;
    if (keysAhead && known) unitKeys.load(keys, firstUnit, range.end);
    waitForEarlierKernels();
    if (reports) stamp(a.marks.stage1);
    cluster.barrier_wait();
    if (!active) return; // the whole cluster leaves

    if (keysAhead && !known) unitKeys.load(keys, firstUnit, range.end);

    // ---- Scores of this rank's blocks, sent to rank 0
    const auto agnosticOf = [&](int b, int2 reach) {
        const bool here = agnostic && b < range.endBlock;
        return AgnosticScore(agnosticScores, here ? reach.x : 0, here ? reach.y : 0);
    };
    const AgnosticScore early = agnosticOf(mineFirst, mineReach);
    float* awareAtRank0 = cluster.map_shared_rank(shared.aware, 0);
    float* agnosticAtRank0 = cluster.map_shared_rank(shared.agnostic, 0);
    const auto sendAware = [&](int b, float score) { awareAtRank0[b] = planted.aware(b, at.position, score); };
    const auto meanwhile = [&] { // called where the ranks wait for each other's sums
        if (agnostic)
#pragma unroll 1
            for (int b = mineFirst; b < range.endBlock; b += Team::kThreads) {
                const float score = b == mineFirst ? early.largest() : agnosticOf(b, reachOf(b)).largest();
                agnosticAtRank0[b] = planted.agnostic(b, score);
            }
        if (rank == 0) state.ask(a, at);
    };
    const Bf16* q = a.q + std::size_t(at.item) * plan.group * kDim;
    if (pooled) {
        float* sums = shared.exponentials; // with Score::PooledProduct the products of the only query
        const auto exchange = [&] {        // of all ranks' maxima and sums
            sendSums<Team>(cluster, plan.group, plan.byGroup, small);
            cluster.barrier_arrive();
            meanwhile();
            cluster.barrier_wait();
        };
        if constexpr (kPlain) {
            HeldScores<kDim, Team> scores;
            scores.score(a, q, keys, plan.group, range, unitKeys, small);
            exchange();
            scores.addUp(plan.group, ranks, range, small, sums);
        } else {
            if (kGuesses && product && a.guess.projected != nullptr) { // its maxima and sums are of softmaxes alone
                auto* const rotated = reinterpret_cast<Bf16*>(small.warps);
                guessed.rotate(a, at, rotated);
                q = rotated;
            }
            scoreWindows<kDim, Team>(a, q, keys, plan.group, range, unitKeys, shared, plan.stride, small);
            if (product) {
                meanwhile();
            } else {
                exchange();
                sumOverGroup<Team>(ranks, plan.group, plan.byGroup, range, shared, plan.stride, small);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int b = mineFirst; b < range.endBlock; b += Team::kThreads) {
            const int2 reach = b == mineFirst ? mineReach : reachOf(b);
            const int begin = max(reach.x, range.begin);
            float best = reach.x < range.begin ? 0.f : -INFINITY; // a window before the sliding window counts as 0
            constexpr int kAtOnce = 5;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (begin + i < reach.y) best = fmaxf(best, sums[begin + i - range.begin]);
#pragma unroll 1
            for (int c = begin + kAtOnce; c < reach.y; ++c) best = fmaxf(best, sums[c - range.begin]);
            sendAware(b, best);
        }
    } else {
        meanwhile();
        if constexpr (kPlain) {
        } else if (!at.dense && a.score == Score::RangeBound) {
            boundRanges<kDim, Team>(a, q, plan.group, at.head, range, shared.exponentials, sendAware);
        } else if (!at.dense && a.score == Score::Given) {
            const float* scores = a.givenScores + std::size_t(at.item) * a.maxBlocks;
#pragma unroll 1
            for (int b = mineFirst; b < range.endBlock; b += Team::kThreads) sendAware(b, scores[b]);
        }
    }
    cluster.barrier_arrive();
    std::uint8_t origins[Team::kItems];
#pragma unroll
    for (int i = 0; i < Team::kItems; ++i) origins[i] = forced.originOf(Team::blockOf(i));
    if (rank == 0 && a.slots.count > 0) placeTokenEarly<kDim, Team>(a, at, state, small);
    cluster.barrier_wait(); // rank 0 has all scores; no other rank reads this thread block's shared memory any more
    if (rank != 0) return;

    // ---- Two-phase top-k
    if (reports) stamp(a.marks.pooling);
    if (!kPlain && a.chosen.blocks != nullptr && !at.dense)
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

/// Whether the kernel for plain selections can be launched. heldWindows: the most windows of a rank that it holds.
bool isPlain(const SelectArgs& a, const SelectPlan& plan, int heldWindows) {
    return a.score == SelectArgs::Score::PooledSoftmax && a.chosen.blocks == nullptr && a.slidingWindow == 0 &&
           (a.shape.dim == 64 || a.shape.dim == 128) && plan.group <= kHeldHeads && plan.windowsPerRank <= heldWindows;
}

} // namespace

void selectBlocksOnDevice(const Launch& how, const SelectArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const bool brief = args.maxBlocks <= ShortSelect::kBlocks;
    const auto choose = [&](auto dim, auto plain) {
        constexpr int kDim = decltype(dim)::value;
        constexpr bool kPlain = decltype(plain)::value;
        return brief                                   ? selectKernel<kDim, ShortSelect, kPlain>
               : args.maxBlocks <= LongSelect::kBlocks ? selectKernel<kDim, LongSelect, kPlain>
                                                       : selectKernel<kDim, LongestSelect, kPlain>;
    };
    const std::false_type any;
    auto kernel = args.shape.dim == kLatentDim        ? choose(std::integral_constant<int, kLatentDim>{}, any)
                  : args.shape.dim == kSmallLatentDim ? choose(std::integral_constant<int, kSmallLatentDim>{}, any)
                  : args.shape.dim == 64              ? choose(std::integral_constant<int, 64>{}, any)
                                                      : choose(std::integral_constant<int, 128>{}, any);
    Grid grid{dim3(1), dim3(brief ? ShortSelect::kThreads : LongSelect::kThreads)};
    const int ranks = ranksOf(how, args, kernel, grid);
    if (ranks == 0 || args.maxBlocks > LongestSelect::kBlocks) refuseContext(args.maxBlocks, args.shape.blockSize);
    const SelectPlan plan(args, ranks);
    grid.blocks = dim3(unsigned(args.rows * args.shape.kvHeads * ranks));
    grid.cluster = unsigned(ranks);
    grid.sharedBytes = plan.total;
    if (isPlain(args, plan, brief ? ShortSelect::kHeldWindows : LongSelect::kHeldWindows)) {
        const auto plain = args.shape.dim == 64 ? choose(std::integral_constant<int, 64>{}, std::true_type())
                                                : choose(std::integral_constant<int, 128>{}, std::true_type());
        // Asking also allows the cluster's size.
        if (ranks == 1 || knownClustersAtOnce(grid, plain, "preparing the selection") > 0) kernel = plain;
    }
    raiseShared(kernel, plan.total, "preparing the selection");
    launch(how, grid, kernel, "selecting blocks", args, plan);
}

} // namespace kvscope::cuda
