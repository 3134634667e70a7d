#include "kernels/cuda/methods/lookahead.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/token/rotation.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

/// A warp per (row, head).
template <int kDim> __global__ void __launch_bounds__(kThreads) guessKernel(GuessArgs a) {
    constexpr int kHalf = kDim / 2, kMine = kHalf / kWarp;
    letNextKernelStart();
    const int lane = threadIdx.x % kWarp, item = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
    if (item >= a.rows * a.heads) return;
    const int row = item / a.heads;
    const std::size_t table =
        std::size_t(a.oneSequence ? a.ropeFirst[0] + a.firstPosition + row : a.ropeFirst[row] + a.position[row]);
    const std::size_t angles = table * kHalf;
    const bool active = a.active == nullptr || a.active[row] != 0;
    waitForEarlierKernels();
    if (!active) return;
    const float* from = a.projected + std::size_t(item) * kDim;
    float low[kMine], high[kMine], squares = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
        const Pair pair(a.interleaved, lane + i * kWarp, kHalf);
        low[i] = from[pair.low], high[i] = from[pair.high];
        squares += low[i] * low[i] + high[i] * high[i];
    }
    if (a.norm != nullptr) {
        const float inverse = rsqrtf(warpSum(squares) / float(kDim) + a.eps);
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            const Pair pair(a.interleaved, lane + i * kWarp, kHalf);
            low[i] *= inverse * a.norm[pair.low];
            high[i] *= inverse * a.norm[pair.high];
        }
    }
    Bf16* to = a.q + std::size_t(item) * kDim;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
        const int c = lane + i * kWarp;
        rotatePair(Pair(a.interleaved, c, kHalf), low[i], high[i], a.cos[angles + c], a.sin[angles + c], to);
    }
}

} // namespace

void rotateGuess(const Launch& how, const GuessArgs& args) {
    if (args.rows == 0) return;
    const Grid grid{dim3(unsigned((args.rows * args.heads + kWarps - 1) / kWarps)), dim3(kThreads)};
    launch(how, grid, args.dim == 64 ? guessKernel<64> : guessKernel<128>, "rotating the guessed queries", args);
}

} // namespace kvscope::cuda
