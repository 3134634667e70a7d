#include "kernels/cuda/methods/candidates.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ranking.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Where arrays lie in a thread block's shared memory: offsets in bytes from its start.
struct SettlePlan {
    int words = 0; // of a bitmap of blocks
    unsigned selected = 0, listed = 0, list = 0, used = 0;
    std::size_t total = 0;
    explicit SettlePlan(const SettleArgs& a) : words((a.maxBlocks + 31) / 32) {
        const auto take = [&](std::size_t bytes) {
            const std::size_t here = total;
            total = (total + bytes + 15) / 16 * 16;
            return unsigned(here);
        };
        selected = take(std::size_t(words) * 4);
        listed = take(std::size_t(words) * 4);
        list = take(std::size_t(a.capacity) * 4);
        used = take(std::size_t(a.capacity));
    }
};

/// The sum over the group of the largest q.k that keys inside the block's range can have. A warp calls this.
__device__ float boundOf(const SettleArgs& a, int item, int head, int block) {
    const int dim = a.shape.dim, group = a.shape.queryHeads / a.shape.kvHeads, lane = threadIdx.x % kWarp;
    const Bf16* range = a.index.ranges + std::size_t(a.index.blockFirst[head] + block) * 2 * dim;
    const Bf16* q = a.q + std::size_t(item) * group * dim;
    float sum = 0;
    for (int c = lane; c < dim; c += kWarp) {
        const float low = __bfloat162float(range[c]), high = __bfloat162float(range[dim + c]);
        for (int h = 0; h < group; ++h) {
            const float value = __bfloat162float(q[h * dim + c]);
            sum += fmaxf(value * low, value * high);
        }
    }
    return warpSum(sum);
}

/// Reports which candidates have chosen tokens, and how the prediction of the step before fared.
__device__ void report(const SettleArgs& a, const SettlePlan& plan, char* shared, int item, int head,
                       BlockCounter<kWarps>& counter) {
    auto* selected = reinterpret_cast<std::uint32_t*>(shared + plan.selected);
    auto* listed = reinterpret_cast<std::uint32_t*>(shared + plan.listed);
    auto* list = reinterpret_cast<std::int32_t*>(shared + plan.list);
    auto* used = reinterpret_cast<std::uint8_t*>(shared + plan.used);
    const int bs = a.shape.blockSize, lane = threadIdx.x % kWarp;
    const std::size_t first = std::size_t(item) * a.capacity;
    const PackedBlock* candidates = a.candidates.blocks + first;
    const int count = a.candidates.count[item], units = bs / 16; // of 16 places
    for (int i = threadIdx.x; i < plan.words; i += kThreads) selected[i] = listed[i] = 0;
    for (int i = threadIdx.x; i < count; i += kThreads) {
        unsigned any = 0;
        for (int unit = 0; unit < units; ++unit) any |= a.chosen[(first + i) * units + unit];
        used[i] = any != 0 ? 1 : 0;
    }
    __syncthreads();

    const SelectionHead ahead = a.candidates.heads != nullptr ? a.candidates.heads[item] : SelectionHead{-1};
    const bool predicts = ahead.selected >= 0;
    const int predicted = predicts ? ahead.selected : 0; // candidates beyond these: a block that begins with this token
    const int perThread = (count + kThreads - 1) / kThreads, begin = min(int(threadIdx.x) * perThread, count),
              end = min(begin + perThread, count);
    int mine = 0, hits = 0, usedAhead = 0, wasted = 0;
    for (int i = begin; i < end; ++i) {
        const PackedBlock candidate = candidates[i];
        const auto block = unsigned(candidate.id());
        const bool hit = candidate.hit();
        atomicOr(&listed[block / 32], 1u << block % 32);
        if (used[i] == 0) {
            wasted += i < predicted && !hit ? 1 : 0;
            continue;
        }
        atomicOr(&selected[block / 32], 1u << block % 32);
        ++mine;
        hits += hit ? 1 : 0;
        usedAhead += i < predicted ? 1 : 0;
    }
    int total = 0;
    int at = counter.prefix(mine, total); // its barrier completes `selected` and `listed`
    hits = counter.sum(hits);
    usedAhead = counter.sum(usedAhead);
    wasted = counter.sum(wasted);
    for (int i = begin; i < end; ++i) {
        if (used[i] == 0) continue;
        const PackedBlock candidate = candidates[i];
        list[at] = candidate.id();
        if (a.blocks != nullptr)
            a.blocks[first + at] = PackedBlock(candidate.id(), Origin::TokenLevel, candidate.hit());
        ++at;
    }
    std::uint32_t* previous = a.previous + std::size_t(head) * plan.words;
    const bool comparable = a.hasPrevious[head] != 0;
    int kept = 0, stale = 0;
    for (int i = threadIdx.x; i < plan.words; i += kThreads) {
        kept += __popc(previous[i] & selected[i]);
        previous[i] = selected[i];
    }
    if (a.next.blocks != nullptr)
        for (int i = threadIdx.x; i < a.next.count[item]; i += kThreads) {
            const auto block = unsigned(a.next.blocks[first + i].id());
            stale += (listed[block / 32] >> block % 32 & 1u) == 0 ? 1 : 0;
        }
    kept = counter.sum(kept);
    stale = counter.sum(stale); // its barrier completes `list`
    if (a.scores != nullptr)
        for (int i = int(threadIdx.x) / kWarp; i < total; i += kWarps) {
            const float score = boundOf(a, item, head, list[i]);
            if (lane == 0) a.scores[first + i] = score;
        }
    if (threadIdx.x != 0) return;
    a.hasPrevious[head] = 1;
    a.head[item] = {total, comparable ? kept : -1, hits, total - hits};
    if (a.lag != nullptr)
        a.lag[item] = {ahead.selected, predicts ? usedAhead : 0, predicts ? wasted : 0,
                       predicts ? std::int32_t(ahead.late) : 0, stale};
}

/// Grid: (row, KV head).
__global__ void __launch_bounds__(kThreads) settleKernel(SettleArgs a, SettlePlan plan) {
    extern __shared__ uint4 raw[];
    __shared__ BlockCounter<kWarps>::Shared counts;
    const int item = blockIdx.x, row = item / a.shape.kvHeads;
    letNextKernelStart();
    waitForEarlierKernels();
    const bool active = a.active == nullptr || a.active[row] != 0;
    if (active && a.head != nullptr) {
        BlockCounter<kWarps> counter(counts);
        report(a, plan, reinterpret_cast<char*>(raw), item, a.firstSequence * a.shape.kvHeads + item, counter);
    }
    if (item == 0 && threadIdx.x == 0 && a.layer != nullptr)
        *a.layer = {*a.marks, 0, a.published != nullptr ? a.published[0] : 0u};
    if (a.next.blocks == nullptr) return;
    __syncthreads(); // all threads have read the candidates
    if (item == 0 && threadIdx.x == 0 && a.counts != nullptr) {
        a.published[0] = a.counts[0];
        a.counts[0] = a.counts[1] = 0;
    }
    if (!active) return;
    const std::size_t first = std::size_t(item) * a.capacity;
    const int count = a.next.count[item], tokens = a.position[row] + 1;
    for (int i = threadIdx.x; i < count; i += kThreads) {
        a.candidates.blocks[first + i] = a.next.blocks[first + i];
        a.candidates.ids[first + i] = a.next.blocks[first + i].id();
    }
    if (threadIdx.x != 0) return;
    const bool begins = tokens % a.shape.blockSize == 0 && count < a.capacity;
    if (begins) {
        const int block = tokens / a.shape.blockSize;
        a.candidates.blocks[first + count] = PackedBlock(block, Origin::Window, true);
        a.candidates.ids[first + count] = block;
    }
    a.candidates.count[item] = count + (begins ? 1 : 0);
    a.candidates.heads[item] = a.next.heads != nullptr ? a.next.heads[item] : SelectionHead{-1};
}

__global__ void waitKernel(const LagMarks* marks, int layers, const std::uint64_t* ready, std::uint64_t* waitedNs) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (waitedNs == nullptr) return;
    std::uint64_t last = 0;
    for (int i = 0; i < layers; ++i) last = max(last, marks[i].end);
    *waitedNs = last > *ready ? globalTimer() - *ready : 0;
}

/// Grid: (row, KV head), a warp.
__global__ void __launch_bounds__(kWarp) shareKernel(AttendedShareArgs a) {
    const int item = blockIdx.x, row = item / a.shape.kvHeads, group = a.shape.queryHeads / a.shape.kvHeads,
              lane = threadIdx.x;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int blocks = a.position[row] / a.shape.blockSize + 1,
              first = a.window > 0 ? max(0, a.position[row] + 1 - a.window) / a.shape.blockSize : 0;
    float share = 0;
    for (int h = 0; h < group; ++h) {
        const std::size_t head = std::size_t(item) * group + h;
        const float* logSums = a.blocks + head * a.maxBlocks;
        float largest = -INFINITY, sum = 0;
        for (int b = first + lane; b < blocks; b += kWarp) largest = fmaxf(largest, logSums[b]);
        largest = warpMax(largest);
        for (int b = first + lane; b < blocks; b += kWarp) sum += expf(logSums[b] - largest);
        sum = warpSum(sum);
        share += expf(a.attended[head] - largest) / sum / float(group);
    }
    if (lane == 0) a.share[item] = fminf(share, 1.f);
}

} // namespace

void settleCandidates(const Launch& how, const SettleArgs& args) {
    if (args.rows == 0) return;
    const SettlePlan plan(args);
    allowShared(settleKernel, plan.total, "preparing the candidates");
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kThreads), plan.total}, settleKernel,
           "settling the candidates", args, plan);
}

void reportWait(const Launch& how, const LagMarks* marks, int layers, const std::uint64_t* ready,
                std::uint64_t* waitedNs) {
    launch(how, {dim3(1), dim3(1)}, waitKernel, "waiting for transfers", marks, layers, ready, waitedNs);
}

void attendedShare(const Launch& how, const AttendedShareArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.shape.kvHeads)), dim3(kWarp)}, shareKernel,
           "measuring what was attended", args);
}

} // namespace kvscope::cuda
