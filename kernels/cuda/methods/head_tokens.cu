#include "kernels/cuda/methods/head_tokens.h"

#include "kernels/cuda/device/ranking.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/methods/token_pack.h"

#include <string>

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Grid: (rows*heads). The last thread block to arrive works out the mean.
__global__ void __launch_bounds__(kThreads) nearKernel(NearCountArgs a) {
    __shared__ float warpBest[kWarps];
    __shared__ BlockCounter<kWarps>::Shared counts;
    const int item = blockIdx.x, row = item / a.heads, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    const bool active = a.active == nullptr || a.active[row] != 0;
    const int tokens = active ? a.position[row] : 0;
    const float* scores = a.scores + std::size_t(item) * a.stride;
    float best = -INFINITY;
    for (int i = threadIdx.x; i < tokens; i += kThreads) best = fmaxf(best, scores[i]);
    best = warpMax(best);
    if (lane == 0) warpBest[warp] = best;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) best = fmaxf(best, warpBest[w]);
    int near = 0;
    for (int i = threadIdx.x; i < tokens; i += kThreads) near += scores[i] > best - a.alpha ? 1 : 0;
    BlockCounter<kWarps> counter(counts);
    near = counter.sum(near);
    if (threadIdx.x != 0) return;
    a.length[item] = tokens;
    atomicAdd(reinterpret_cast<unsigned long long*>(a.total), static_cast<unsigned long long>(near));
    __threadfence();
    if (atomicAdd(a.arrived, 1u) + 1 != gridDim.x) return;
    __threadfence();
    int rows = 0;
    for (int r = 0; r < a.rows; ++r) rows += a.active == nullptr || a.active[r] != 0 ? 1 : 0;
    const auto mean = static_cast<long long>(__ldcg(reinterpret_cast<const unsigned long long*>(a.total))) /
                      (static_cast<long long>(max(1, rows)) * a.heads);
    *a.wanted = int(min(max(mean, 1ll), static_cast<long long>(a.most)));
    *a.total = 0;
    *a.arrived = 0;
}

/// Grid: (rows*kvHeads). Shared memory has a bitmap of the sequence's tokens, and for each word how many tokens of the
/// list lie before it.
__global__ void __launch_bounds__(kThreads) uniteKernel(UniteArgs a) {
    extern __shared__ std::uint32_t bits[];
    __shared__ BlockCounter<kWarps>::Shared counts;
    const int item = blockIdx.x, row = item / a.shape.kvHeads, group = a.shape.queryHeads / a.shape.kvHeads;
    const int newest = a.position[row], words = (a.maxTokens + 31) / 32;
    std::uint32_t* before = bits + words;
    letNextKernelStart();
    const bool active = a.active == nullptr || a.active[row] != 0;
    for (int w = threadIdx.x; w < words; w += kThreads) bits[w] = 0;
    __syncthreads();
    waitForEarlierKernels();
    if (!active) return;
    for (int h = 0; h < group; ++h) {
        const int head = item * group + h, count = a.count[head];
        for (int i = threadIdx.x; i < count; i += kThreads) {
            const std::int32_t token = a.tokens[std::size_t(head) * a.capacity + i];
            atomicOr(&bits[token / 32], 1u << token % 32);
        }
    }
    if (threadIdx.x == 0) atomicOr(&bits[newest / 32], 1u << newest % 32);
    __syncthreads();
    const int perThread = (words + kThreads - 1) / kThreads, begin = min(int(threadIdx.x) * perThread, words),
              end = min(begin + perThread, words);
    int mine = 0, total = 0;
    for (int w = begin; w < end; ++w) mine += __popc(bits[w]);
    BlockCounter<kWarps> counter(counts);
    int at = counter.prefix(mine, total);
    std::int32_t* united = a.united + std::size_t(item) * a.unitedCapacity;
    for (int w = begin; w < end; ++w) {
        before[w] = std::uint32_t(at);
        for (std::uint32_t left = bits[w]; left != 0; left &= left - 1) united[at++] = w * 32 + __ffs(int(left)) - 1;
    }
    if (threadIdx.x == 0) a.unitedCount[item] = total;
    __syncthreads();
    for (int h = 0; h < group; ++h) {
        const int head = item * group + h, count = a.count[head];
        const std::size_t to = std::size_t(head) * (a.capacity + 1);
        for (int i = threadIdx.x; i <= count; i += kThreads) {
            const std::int32_t token = i < count ? a.tokens[std::size_t(head) * a.capacity + i] : newest;
            a.own[to + i] = token;
            a.places[to + i] = std::int32_t(before[token / 32] + __popc(bits[token / 32] & ((1u << token % 32) - 1)));
        }
        if (threadIdx.x == 0) a.ownCount[head] = count + 1;
    }
}

/// A warp has loads of several tokens in flight at once, because an answer over the link takes long.
__global__ void __launch_bounds__(kThreads) fetchKernel(FetchTokensArgs a) {
    const int heads = a.rows * a.shape.kvHeads, pieces = a.shape.dim / 4; // of 16 bytes: key and value
    const int lane = threadIdx.x % kWarp, warps = int(gridDim.x) * kWarps,
              warp = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    constexpr int kTogether = 8;
    for (int item = 0; item < heads; ++item) {
        if (a.active != nullptr && a.active[item / a.shape.kvHeads] == 0) continue;
        const std::size_t listed = std::size_t(item) * a.capacity;
        const int count = a.count[item] - 1;
        for (int first = warp * kTogether; first < count; first += warps * kTogether)
            for (int piece = lane; piece < pieces; piece += kWarp) {
                uint4 data[kTogether];
#pragma unroll
                for (int t = 0; t < kTogether; ++t) {
                    const std::int32_t token = a.tokens[listed + min(first + t, count - 1)];
                    data[t] = loadOnce(a.store + (a.first[item] + token) * std::int64_t(2 * a.shape.dim) + piece * 8);
                }
#pragma unroll
                for (int t = 0; t < kTogether; ++t)
                    if (first + t < count)
                        *reinterpret_cast<uint4*>(a.to + (listed + first + t) * 2 * a.shape.dim + piece * 8) = data[t];
            }
    }
    __syncthreads();
    if (threadIdx.x == 0) stampLatest(a.endMark);
}

/// Grid: (rows*kvHeads), a warp.
__global__ void __launch_bounds__(kWarp) newestKernel(PlaceNewestArgs a) {
    const int item = blockIdx.x, row = item / a.shape.kvHeads, dim = a.shape.dim;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const auto put = [&](Bf16* to) {
        for (int i = threadIdx.x; i < dim / 4; i += kWarp)
            reinterpret_cast<uint4*>(to)[i] = i < dim / 8
                                                  ? loadOnce(a.newKey + std::size_t(item) * dim + i * 8)
                                                  : loadOnce(a.newValue + std::size_t(item) * dim + (i - dim / 8) * 8);
    };
    put(a.store + std::size_t(a.first[item] + a.position[row]) * tokenElements(dim));
    if (a.fetched != nullptr)
        put(a.fetched + (std::size_t(item) * a.capacity + a.count[item] - 1) * tokenElements(dim));
}

} // namespace

void countNear(const Launch& how, const NearCountArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.heads)), dim3(kThreads)}, nearKernel, "counting near tokens", args);
}

void uniteHeads(const Launch& how, const UniteArgs& args) {
    if (args.rows == 0) return;
    const std::size_t bytes = std::size_t((args.maxTokens + 31) / 32) * 8;
    if (const std::size_t room = sharedRoom(how, uniteKernel); bytes > room)
        throw Error(ErrorKind::Unsupported,
                    "the GPU unites the tokens of a group's heads in sequences of at most " +
                        std::to_string(room / 8 * 32) + " tokens",
                    "use a shorter context, or --backend cpu");
    raiseShared(uniteKernel, bytes, "preparing the choice of tokens");
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kThreads), bytes}, uniteKernel,
           "uniting the heads' tokens", args);
}

void fetchTokens(const Launch& how, const FetchTokensArgs& args, int blocks) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(blocks)), dim3(kThreads)}, fetchKernel, "fetching tokens", args);
}

void placeNewest(const Launch& how, const PlaceNewestArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kWarp)}, newestKernel, "placing a token", args);
}

} // namespace kvscope::cuda
