#include "kernels/cuda/diffusion/unmask.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;

struct Best {
    float logit;
    std::int32_t id;
    float second; // largest logit of the others
};
/// Merges what is known of two disjoint sets of ids.
__device__ inline Best better(Best a, Best b) {
    const Best& best = b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
    return {best.logit, best.id, fmaxf(fminf(a.logit, b.logit), fmaxf(a.second, b.second))};
}
__device__ inline Best warpBest(Best best) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        best = better(best,
                      {__shfl_xor_sync(0xffffffffu, best.logit, offset), __shfl_xor_sync(0xffffffffu, best.id, offset),
                       __shfl_xor_sync(0xffffffffu, best.second, offset)});
    return best;
}
__device__ inline double warpSum(double value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/// Grid (rows*block). A thread block makes the candidate of one masked position. Its threads first find the best of the
/// allowed ids and the second largest logit, then the sums of the softmax, from which the confidence, the entropy and
/// the second largest probability follow.
__global__ void __launch_bounds__(kThreads) candidateKernel(CandidateArgs a) {
    __shared__ Best bests[kWarps];
    __shared__ double sums[kWarps], products[kWarps];
    __shared__ int broken;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.mark);
    const int at = int(blockIdx.x), row = at / a.block, lane = int(threadIdx.x) % kWarp,
              warp = int(threadIdx.x) / kWarp;
    if (!a.table[row].is(BlockRow::kTaken) || (a.masked[row] >> (at - row * a.block) & 1) == 0) return;
    const float* const logits = a.logits + std::size_t(at) * std::size_t(a.vocab);
    if (threadIdx.x == 0) broken = 0;
    __syncthreads();
    constexpr std::int32_t kNone = 0x7fffffff;
    Best best{-INFINITY, kNone, -INFINITY};
    bool infinite = false;
    for (int id = int(threadIdx.x); id < a.vocab; id += kThreads) {
        if (a.allowed[id] == 0) continue;
        const float logit = logits[id];
        infinite |= !isfinite(logit);
        best = better(best, {logit, id, -INFINITY});
    }
    if (infinite) broken = 1;
    best = warpBest(best);
    if (lane == 0) bests[warp] = best;
    __syncthreads();
    best = warpBest(bests[lane]); // kWarps is the size of a warp
    static_assert(kWarps == kWarp);
    double sum = 0, product = 0; // sums of exp(x) and of x exp(x) over the allowed ids; x: logit minus the largest
    for (int id = int(threadIdx.x); id < a.vocab; id += kThreads) {
        if (a.allowed[id] == 0) continue;
        const float distance = logits[id] - best.logit;
        const double weight = double(expf(distance));
        sum += weight;
        if (weight > 0) product += weight * double(distance);
    }
    sum = warpSum(sum);
    product = warpSum(product);
    if (lane == 0) sums[warp] = sum, products[warp] = product;
    __syncthreads();
    if (warp != 0) return;
    sum = warpSum(sums[lane]);
    product = warpSum(products[lane]);
    if (lane != 0) return;
    // -sum p ln p with p = exp(x) / sum
    const double second = double(expf(best.second - best.logit)) / sum;
    a.candidates[at] = {1 / sum, log(sum) - product / sum, broken != 0 || best.id == kNone ? -1 : best.id, 0, second};
}

/// Grid (rows), a thread for each token. The thread of a masked position counts the masked positions that go before its
/// own, and writes its candidate where these are fewer than BlockRow::writes.
__global__ void __launch_bounds__(kMostDenoised) writeKernel(UnmaskArgs a) {
    __shared__ double confidences[kMostDenoised];
    __shared__ unsigned written[2];
    letNextKernelStart();
    waitForEarlierKernels();
    const int row = int(blockIdx.x), i = int(threadIdx.x);
    const BlockRow of = a.table[row];
    if (!of.is(BlockRow::kTaken)) return;
    const std::uint64_t masked = a.masked[row];
    const bool mine = i < a.block && (masked >> i & 1) != 0;
    const BlockCandidate* const candidates = a.candidates + std::size_t(row) * a.block;
    if (mine) confidences[i] = candidates[i].confidence;
    if (i < 2) written[i] = 0;
    __syncthreads();
    if (mine) {
        int before = 0;
        for (int j = 0; j < a.block; ++j) {
            if ((masked >> j & 1) == 0) continue;
            const bool lower = j < i;
            before +=
                a.leftmost ? lower : confidences[j] > confidences[i] || (confidences[j] == confidences[i] && lower);
        }
        if (before < of.writes) {
            a.ids[row * a.block + i] = max(candidates[i].id, 0); // the host refuses -1 when it reads the candidate
            atomicOr(&written[i / 32], 1u << (i % 32));
        }
    }
    __syncthreads();
    if (i < a.block) a.record[row * a.block + i] = a.ids[row * a.block + i];
    if (i == 0) a.masked[row] = masked & ~(std::uint64_t(written[1]) << 32 | written[0]);
}

} // namespace

void writeCandidates(const Launch& how, const UnmaskArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows)), dim3(kMostDenoised)}, writeKernel, "writing candidates", args);
}

void chooseCandidates(const Launch& how, const CandidateArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows * args.block)), dim3(kThreads)}, candidateKernel, "choosing candidates", args);
}

} // namespace kvscope::cuda
