#include "kernels/cuda/methods/candidate_attention.h"

#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/methods/candidate_attend.cuh"
#include "kernels/cuda/methods/candidate_scores.cuh"

#include <algorithm>
#include <type_traits>

namespace kvscope::cuda {
namespace {

/// Bytes of dynamic shared memory that a thread block may have beside its static part.
std::size_t sharedLimit(const Launch& how) {
    const std::size_t wanted = std::size_t(how.clusters ? 190 : 125) << 10;
    return std::min(wanted, how.blockShared - std::min(how.blockShared, sizeof(CandidateShared)));
}

/// Grid: (thread blocks of a cluster, kvHeads, rows).
template <int kDim, int kChunks, bool kCoded>
__global__ void __launch_bounds__(kCandidateThreads)
    candidateKernel(CandidateAttentionArgs a, CandidatePlan plan, DecodePlan decode) {
    extern __shared__ __align__(128) unsigned char raw[];
    __shared__ CandidateShared s;
    const auto cluster = thisCluster();
    DecodePlace place(a.attend.shape, decode);
    letNextKernelStart();
    cluster.barrier_arrive(); // others may write to a thread block's shared memory only once it has started
    const bool active = a.attend.active == nullptr || a.attend.active[place.row] != 0;
    CandidatePart part(a, plan, int(cluster.block_rank()), place.item, place.row, raw);
    // Read before the wait: no kernel of a step writes channels or the labels of tokens before the newest, and with
    // listedBefore the kernel before does not write the lists.
    for (int i = threadIdx.x; i < a.labels.channels; i += kCandidateThreads)
        s.channel[i] = a.labels.channel[std::size_t(place.item) * a.labels.channels + i];
    if (active && a.listedBefore) part.read(a, true);
    waitForEarlierKernels();
    const bool reports = place.item == 0 && part.rank == 0 && threadIdx.x == 0;
    if (reports) stamp(a.marks[0]);
    cluster.barrier_wait();
    if (!active) return; // the whole cluster leaves
    if (!a.listedBefore) part.read(a, false);
    __syncthreads();

    prepareQueries<kChunks>(s, a, part, place.firstQueryHead);
    __syncthreads();
    scoreLabels<kChunks, kCoded>(s, a, part);
    __syncthreads();
    softmaxOverCluster(s, part);
    rankPlaces(s, part);
    if (reports) stamp(a.marks[1]);
    const Threshold threshold =
        findThreshold(s.threshold, part.count, part.all, a.wanted, [&](int i) { return part.ranksOfPlaces()[i]; });
    const int total = takePlaces(s, a, part, threshold);
    if (reports) stamp(a.marks[2]), stamp(a.attend.mark);

    const std::size_t firstQueryHead = place.firstQueryHead;
    for (int head = 0; head < decode.group; head += kHeads) {
        if (head > 0) cluster.sync(); // all thread blocks have read the results of the heads before
        place.heads = min(kHeads, decode.group - head);
        place.firstQueryHead = firstQueryHead + head;
        Accumulator<kDim> acc;
        acc.clear();
        attendPlaces<kDim>(a.attend, place, part, total, acc);
        mergeCandidates<kDim>(s, a.attend, place, part, acc);
    }
}

/// Grid: (blocks, kvHeads).
__global__ void __launch_bounds__(kCandidateThreads) turnKernel(TurnValuesArgs a) {
    extern __shared__ __align__(128) unsigned char raw[];
    const int dim = a.shape.dim, bs = a.shape.blockSize, stride = bs + 2; // an odd number of words: different banks
    Bf16* tile = reinterpret_cast<Bf16*>(raw);
    letNextKernelStart();
    waitForEarlierKernels();
    Bf16* values = a.blocks + std::size_t(blockIdx.y) * a.headStride +
                   std::size_t(blockIdx.x) * blockElements(bs, dim) + std::size_t(bs) * dim;
    for (int i = threadIdx.x; i < bs * dim; i += kCandidateThreads) tile[i / bs * stride + i % bs] = values[i];
    __syncthreads();
    for (int i = threadIdx.x; i < bs * dim; i += kCandidateThreads) values[i] = tile[i % dim * stride + i / dim];
}

/// How many clusters of so many thread blocks run at once with a multiprocessor for each thread block.
int candidateClustersAtOnce(const Launch& how, int ranks) {
    const Grid grid{dim3(unsigned(ranks)), dim3(kCandidateThreads), sharedLimit(how), unsigned(ranks)};
    return knownClustersAtOnce(grid, candidateKernel<128, 1, true>, "planning the attention over candidates");
}

/// Whether the merge has room: every thread block merges an equal share of the heads, and has room for kHeads results.
bool mergesInRoom(const AttentionShape& shape, int ranks) {
    const int heads = std::min(shape.group(), kHeads);
    return (heads + ranks - 1) / ranks * ranks <= kHeads;
}

/// Chooses how many thread blocks share a list: the most with which all clusters run at once and each thread block has
/// something to do. A cluster that had to wait for another would cost more than its thread blocks save.
CandidatePlan planFor(const Launch& how, const AttentionShape& shape, int rows, int capacity) {
    const int lists = rows * shape.kvHeads, groups = capacity * (shape.blockSize / kGroupPlaces),
              most = how.clusters ? kChoiceCluster : 1;
    const std::size_t limit = sharedLimit(how);
    int ranks = most;
    while (ranks > 1 &&
           (groups <= 4 * ranks || !mergesInRoom(shape, ranks) || candidateClustersAtOnce(how, ranks) < lists))
        --ranks;
    while (ranks < most && (!mergesInRoom(shape, ranks) || CandidatePlan(shape, capacity, ranks, true).total > limit))
        ++ranks;
    const CandidatePlan held(shape, capacity, ranks, true);
    return held.total <= limit ? held : CandidatePlan(shape, capacity, ranks, false);
}

} // namespace

int mostCandidateBlocks(const Launch& how, const AttentionShape& shape) {
    int most = 0; // the largest number that fits, found bit by bit
    for (int step = 1 << 20; step > 0; step /= 2)
        if (CandidatePlan(shape, most + step, how.clusters ? kChoiceCluster : 1, false).total <= sharedLimit(how))
            most += step;
    return most;
}

std::size_t candidateLogitFloats(const Launch& how, const AttentionShape& shape, int rows, int capacity) {
    const CandidatePlan plan = planFor(how, shape, rows, capacity);
    if (plan.logitsHeld) return 0;
    return std::size_t(rows * shape.kvHeads) * std::size_t(shape.group() * plan.stride) * std::size_t(plan.ranks);
}

void attendCandidates(const Launch& how, const CandidateAttentionArgs& args) {
    const AttentionShape& shape = args.attend.shape;
    checkAttentionShape(shape);
    if (shape.group() > kMostGroup)
        throw Error(ErrorKind::Unsupported,
                    "the GPU chooses tokens inside blocks for at most 32 query heads that share a KV head",
                    "use another method, or --backend cpu");
    if (args.attend.rows == 0) return;
    const CandidatePlan plan = planFor(how, shape, args.attend.rows, args.attend.list.capacity);
    const auto ranks = unsigned(plan.ranks);
    const DecodePlan decode{shape.group(), 1, Divider(shape.blockSize)};
    const auto choose = [&](auto dim) {
        constexpr int kDim = decltype(dim)::value;
        const bool few = args.labels.channels <= 32;
        return args.labels.bits == 4 ? few ? candidateKernel<kDim, 1, true> : candidateKernel<kDim, 4, true>
               : few ? candidateKernel<kDim, 1, false>
                                     : candidateKernel<kDim, 4, false>;
    };
    const auto kernel =
        shape.dim == 64 ? choose(std::integral_constant<int, 64>{}) : choose(std::integral_constant<int, 128>{});
    raiseShared(kernel, plan.total, "preparing the attention over candidates");
    launch(
        how,
        {dim3(ranks, unsigned(shape.kvHeads), unsigned(args.attend.rows)), dim3(kCandidateThreads), plan.total, ranks},
        kernel, "attending to candidates", args, plan, decode);
}

void turnValues(const Launch& how, const TurnValuesArgs& args) {
    checkAttentionShape(args.shape);
    if (args.tokens == 0) return;
    const int bs = args.shape.blockSize;
    const std::size_t bytes = std::size_t(args.shape.dim) * std::size_t(bs + 2) * sizeof(Bf16);
    allowShared(turnKernel, bytes, "preparing the values");
    launch(how,
           {dim3(unsigned((args.tokens + bs - 1) / bs), unsigned(args.shape.kvHeads)), dim3(kCandidateThreads), bytes},
           turnKernel, "turning the values", args);
}

} // namespace kvscope::cuda
