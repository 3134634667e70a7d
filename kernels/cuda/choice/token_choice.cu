#include "kernels/cuda/choice/token_choice.h"

#include "kernels/cuda/choice/token_choice.cuh"
#include "kernels/cuda/device/shared_room.cuh"

namespace kvscope::cuda {
namespace {

/// Grid: lists times thread blocks of a cluster. kHeld: shared memory holds a thread block's part of a list; else the
/// scores are read from memory in every turn.
template <bool kHeld> __global__ void __launch_bounds__(kChoiceThreads) choiceKernel(TokenChoiceArgs a) {
    extern __shared__ std::uint32_t held[];
    __shared__ ChoiceShared shared;
    const auto cluster = thisCluster();
    const int ranks = int(cluster.num_blocks()), item = int(blockIdx.x) / ranks, row = item / a.kvHeads;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return; // the whole cluster leaves
    const int all = a.length != nullptr ? a.length[item] : a.position != nullptr ? a.position[row] + 1 : a.maxLength;
    const ListPart part(all, ranks, int(cluster.block_rank()));
    const float* scores = a.scores + std::size_t(item) * a.stride + part.begin;
    if (kHeld) {
#pragma unroll 8
        for (int i = threadIdx.x; i < part.size(); i += kChoiceThreads) held[i] = rankOf(scores[i]);
    }
    cluster.sync(); // all thread blocks have started, and this one's ranks are in shared memory
    const auto rankAt = [&](int i) { return kHeld ? held[i] : rankOf(scores[i]); };
    const int wanted = a.fewer != nullptr ? min(*a.fewer, a.wanted) : a.wanted;
    const Threshold threshold = findThreshold(shared, part.size(), all, wanted, rankAt);
    const std::size_t to = std::size_t(item) * a.capacity;
    const std::int32_t* ids = a.ids != nullptr ? a.ids + std::size_t(item) * a.stride + part.begin : nullptr;
    takeChosen(shared, part.size(), threshold, rankAt, [&](int place, int i) {
        a.tokens[to + place] = ids != nullptr ? ids[i] : part.begin + i;
        if (a.tokenScores != nullptr) a.tokenScores[to + place] = scores[i];
    });
    if (cluster.block_rank() == 0 && threadIdx.x == 0) a.count[item] = min(wanted, all);
}

} // namespace

void chooseTokens(const Launch& how, const TokenChoiceArgs& args) {
    const int lists = args.rows * args.kvHeads;
    if (lists == 0) return;
    unsigned ranks = choiceRanks(how, lists, args.maxLength);
    const auto partOf = [&](unsigned among) {
        return (std::size_t(args.maxLength) + among - 1) / among + kWarp; // a part is rounded up to whole warps
    };
    while (how.clusters && ranks < kChoiceCluster && partOf(ranks) > kChoicePart) ranks *= 2;
    const bool held = partOf(ranks) <= kChoicePart;
    const Grid grid{dim3(unsigned(lists) * ranks), dim3(kChoiceThreads),
                    held ? partOf(ranks) * sizeof(std::uint32_t) : 0, ranks};
    if (held) {
        raiseShared(choiceKernel<true>, grid.sharedBytes, "preparing the choice of tokens");
        launch(how, grid, choiceKernel<true>, "choosing tokens", args);
    } else {
        launch(how, grid, choiceKernel<false>, "choosing tokens", args);
    }
}

} // namespace kvscope::cuda
