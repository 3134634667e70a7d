#include "kernels/cuda/methods/coarse_sums.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kCoarse = 4;                   // fine windows to a coarse one, and fine strides to a coarse stride
constexpr int kMostDim = 128, kTogether = 8; // query heads of a thread block

__device__ inline int windowsOf(const DeviceIndex& index, int tokens) {
    return tokens < index.kernel ? 0 : (tokens - index.kernel) / index.stride + 1;
}

/// Grid: (splits, rows*kvHeads, query heads of the group by 8). A thread takes a window and multiplies its pooled key
/// with all query heads of the thread block.
__global__ void __launch_bounds__(kThreads) logitsKernel(CoarseScoreArgs a) {
    __shared__ __align__(16) float queries[kTogether][kMostDim];
    const int item = blockIdx.y, row = item / a.shape.kvHeads, dim = a.shape.dim,
              group = a.shape.queryHeads / a.shape.kvHeads, firstHead = int(blockIdx.z) * kTogether,
              heads = min(kTogether, group - firstHead);
    letNextKernelStart();
    const int windows = windowsOf(a.index, a.position[row] + 1);
    waitForEarlierKernels();
    if (blockIdx.x == 0 && item == 0 && blockIdx.z == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const std::size_t head = std::size_t(item) * group + firstHead;
    for (int i = threadIdx.x; i < kTogether * dim; i += kThreads)
        queries[i / dim][i % dim] = i / dim < heads ? a.scale * __bfloat162float(a.q[head * dim + i]) : 0.f;
    __syncthreads();
    const Bf16* keys = a.index.pooledKeys + std::size_t(a.index.windowFirst[item]) * dim;
    for (int w = int(blockIdx.x) * kThreads + int(threadIdx.x); w < windows; w += int(gridDim.x) * kThreads) {
        float sums[kTogether] = {};
        for (int c = 0; c < dim; c += 8) {
            const uint4 piece = *reinterpret_cast<const uint4*>(keys + std::size_t(w) * dim + c);
            const float key[8] = {lowHalf(piece.x), highHalf(piece.x), lowHalf(piece.y), highHalf(piece.y),
                                  lowHalf(piece.z), highHalf(piece.z), lowHalf(piece.w), highHalf(piece.w)};
#pragma unroll
            for (int h = 0; h < kTogether; ++h)
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[h] = fmaf(queries[h][c + i], key[i], sums[h]);
        }
#pragma unroll
        for (int h = 0; h < kTogether; ++h)
            if (h < heads) a.logits[(head + h) * a.maxWindows + w] = sums[h];
    }
}

/// Grid: (rows*queryHeads). While there is no complete coarse window, the sum goes over the fine windows.
__global__ void __launch_bounds__(kThreads) sumKernel(CoarseScoreArgs a) {
    __shared__ float mostOf[kWarps], sumOf[kWarps];
    const int head = blockIdx.x, row = head / a.shape.queryHeads, lane = threadIdx.x % kWarp,
              warp = threadIdx.x / kWarp;
    letNextKernelStart();
    const int tokens = a.position[row] + 1, fine = windowsOf(a.index, tokens), apart = a.index.kernel / a.index.stride;
    const int wide = kCoarse * a.index.kernel, step = kCoarse * a.index.stride,
              coarse = tokens < wide ? 0 : (tokens - wide) / step + 1;
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const float* logits = a.logits + std::size_t(head) * a.maxWindows;
    const auto term = [&](int i) {
        if (coarse == 0) return logits[i];
        float sum = 0;
#pragma unroll
        for (int part = 0; part < kCoarse; ++part) sum += logits[kCoarse * i + part * apart];
        return sum / kCoarse;
    };
    const int terms = coarse > 0 ? coarse : fine;
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < terms; i += kThreads) most = fmaxf(most, term(i));
    most = warpMax(most);
    if (lane == 0) mostOf[warp] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, mostOf[w]);
    for (int i = threadIdx.x; i < terms; i += kThreads) sum += expf(term(i) - most);
    sum = warpSum(sum);
    if (lane == 0) sumOf[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sumOf[w];
    a.logSums[head] = terms > 0 ? most + logf(sum) : 0.f;
}

/// Grid: (splits, rows*kvHeads), a warp per block.
__global__ void __launch_bounds__(kThreads) blocksKernel(CoarseScoreArgs a) {
    const int item = blockIdx.y, row = item / a.shape.kvHeads, group = a.shape.queryHeads / a.shape.kvHeads,
              bs = a.shape.blockSize, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    letNextKernelStart();
    const int tokens = a.position[row] + 1, windows = windowsOf(a.index, tokens), blocks = (tokens - 1) / bs + 1;
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const float* logits = a.logits + std::size_t(item) * group * a.maxWindows;
    const float* logSums = a.logSums + std::size_t(item) * group;
    for (int b = int(blockIdx.x) * kWarps + warp; b < blocks; b += int(gridDim.x) * kWarps) {
        // The windows that overlap the block.
        const int begin = b * bs < a.index.kernel ? 0 : (b * bs - a.index.kernel) / a.index.stride + 1,
                  end = min(windows, ((b + 1) * bs + a.index.stride - 1) / a.index.stride);
        float best = -INFINITY;
        for (int w = begin + lane; w < end; w += kWarp) {
            float sum = 0;
            for (int h = 0; h < group; ++h) sum += expf(logits[std::size_t(h) * a.maxWindows + w] - logSums[h]);
            best = fmaxf(best, sum);
        }
        best = warpMax(best);
        if (lane == 0) a.scores[std::size_t(item) * a.maxBlocks + b] = best;
    }
}

} // namespace

void scoreByCoarseSums(const Launch& how, const CoarseScoreArgs& args) {
    checkAttentionShape(args.shape);
    if (args.rows == 0) return;
    const int items = args.rows * args.shape.kvHeads, tiles = (args.shape.group() + kTogether - 1) / kTogether;
    const auto splits = [&](int work, int others) {
        return unsigned(std::clamp(how.multiprocessors * 4 / others, 1, std::max(1, work)));
    };
    launch(how,
           {dim3(splits((args.maxWindows + kThreads - 1) / kThreads, items * tiles), unsigned(items), unsigned(tiles)),
            dim3(kThreads)},
           logitsKernel, "scoring pooled keys", args);
    launch(how, {dim3(unsigned(args.rows * args.shape.queryHeads)), dim3(kThreads)}, sumKernel, "adding up coarse keys",
           args);
    launch(how, {dim3(splits((args.maxBlocks + kWarps - 1) / kWarps, items), unsigned(items)), dim3(kThreads)},
           blocksKernel, "scoring blocks", args);
}

} // namespace kvscope::cuda
