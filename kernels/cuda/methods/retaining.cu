#include "kernels/cuda/methods/retaining.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRows = 8; // tokens a warp takes at once

/// Grid (units of the hidden layer / kWarps, groups of kRows tokens). A warp computes silu of one unit for kRows
/// tokens.
__global__ void __launch_bounds__(kThreads) hiddenKernel(RetainingArgs a) {
    const int unit = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp,
              first = int(blockIdx.y) * kRows;
    letNextKernelStart();
    waitForEarlierKernels();
    if (unit >= a.width) return;
    const float* weights = a.in + std::size_t(unit) * a.inputs;
    float sums[kRows] = {};
    for (int i = lane * 4; i < a.inputs; i += kWarp * 4) { // `inputs` is a multiple of a head's dimension, and so of 4
        const float4 w = *reinterpret_cast<const float4*>(weights + i);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int row = min(first + r, a.n - 1);
            const float4 x = *reinterpret_cast<const float4*>(a.rows + std::size_t(row) * a.inputs + i);
            sums[r] = fmaf(w.x, x.x, fmaf(w.y, x.y, fmaf(w.z, x.z, fmaf(w.w, x.w, sums[r]))));
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float x = warpSum(sums[r]);
        if (lane == 0 && first + r < a.n) a.hidden[std::size_t(first + r) * a.width + unit] = x / (1.f + expf(-x));
    }
}

/// Grid (tokens). The warps of a thread block take turns at the KV heads: a warp computes the score of one head.
__global__ void __launch_bounds__(kThreads) scoreKernel(RetainingArgs a) {
    const int row = blockIdx.x, lane = threadIdx.x % kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    for (int g = int(threadIdx.x) / kWarp; g < a.kvHeads; g += kWarps) {
        float sum = 0;
        for (int i = lane; i < a.width; i += kWarp)
            sum = fmaf(a.out[std::size_t(g) * a.width + i], a.hidden[std::size_t(row) * a.width + i], sum);
        sum = warpSum(sum);
        if (lane == 0) a.scores[row * a.tokenStride + g * a.headStride] = sum;
    }
}

/// Grid (pieces of kThreads places, lists). A thread writes one place of its list: the token of the same list of
/// `source`, or, where `source` is null, the next of consecutive tokens that begin with `from`.
__global__ void __launch_bounds__(kThreads)
    appendKernel(TokenLists to, int at, const std::int32_t* source, int sourceCapacity, int from, int n) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x), list = blockIdx.y;
    if (i == 0) to.count[list] = at + n;
    if (i >= n) return;
    to.tokens[std::size_t(list) * to.capacity + at + i] =
        source != nullptr ? source[std::size_t(list) * sourceCapacity + from + i] : from + i;
}

/// Grid (pieces of kThreads places, lists). A thread copies the score of one token of its list.
__global__ void __launch_bounds__(kThreads)
    gatherScoresKernel(TokenLists lists, int n, const float* scores, std::int64_t scoreStride, float* to) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int i = int(blockIdx.x) * kThreads + int(threadIdx.x), list = blockIdx.y;
    if (i >= n) return;
    const std::size_t at = std::size_t(list) * lists.capacity + i;
    to[at] = scores[std::size_t(list) * scoreStride + lists.tokens[at]];
}

unsigned pieces(int count) { return unsigned((count + kThreads - 1) / kThreads); }

} // namespace

void scoreRetaining(const Launch& how, const RetainingArgs& args) {
    if (args.n == 0) return;
    launch(how,
           {dim3(unsigned((args.width + kWarps - 1) / kWarps), unsigned((args.n + kRows - 1) / kRows)), dim3(kThreads)},
           hiddenKernel, "scoring tokens", args);
    launch(how, {dim3(unsigned(args.n)), dim3(kThreads)}, scoreKernel, "scoring tokens", args);
}

void appendTokens(const Launch& how, const TokenLists& to, int at, int first, int n) {
    launch(how, {dim3(std::max(1u, pieces(n)), unsigned(to.lists)), dim3(kThreads)}, appendKernel, "listing tokens", to,
           at, static_cast<const std::int32_t*>(nullptr), 0, first, n);
}

void appendPlaces(const Launch& how, const TokenLists& to, int at, const TokenLists& source, int from, int n) {
    launch(how, {dim3(std::max(1u, pieces(n)), unsigned(to.lists)), dim3(kThreads)}, appendKernel, "listing tokens", to,
           at, source.tokens, source.capacity, from, n);
}

void gatherScores(const Launch& how, const TokenLists& lists, int n, const float* scores, std::int64_t scoreStride,
                  float* to) {
    if (n == 0) return;
    launch(how, {dim3(pieces(n), unsigned(lists.lists)), dim3(kThreads)}, gatherScoresKernel, "gathering scores", lists,
           n, scores, scoreStride, to);
}

} // namespace kvscope::cuda
