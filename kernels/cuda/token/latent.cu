#include "kernels/cuda/token/latent.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/token/rotation.cuh"
#include "kernels/cuda/token/token_index.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Grid (row tiles of 16 * kWarps, heads, inputs / (8 * kInputTiles)): a warp takes 16 rows. Columns are permuted as in
/// linear_tiles.cu: a 16-byte piece of 8 columns is the fragments of two instructions.
template <int kInputTiles, bool kFloat> __global__ void __launch_bounds__(kThreads) headKernel(HeadProductArgs a) {
    const int lane = threadIdx.x % kWarp, row8 = lane / 4, quad = lane % 4, head = blockIdx.y;
    const int firstRow = (blockIdx.x * kWarps + threadIdx.x / kWarp) * 16, firstInput = blockIdx.z * kInputTiles * 8;
    letNextKernelStart();
    if (firstRow >= a.rows) return;
    const uint4* rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
        rows[half] =
            reinterpret_cast<const uint4*>(a.w + (std::size_t(head) * a.rows + firstRow + half * 8 + row8) * a.cols) +
            quad;
    waitForEarlierKernels();
    float c[kInputTiles][4] = {};
#pragma unroll 4
    for (int step = 0; step < a.cols / 32; ++step) {
        const uint4 p = __ldg(rows[0] + step * 4), q = __ldg(rows[1] + step * 4);
#pragma unroll
        for (int j = 0; j < kInputTiles; ++j) {
            const std::size_t at = std::size_t(min(firstInput + j * 8 + row8, a.n - 1)) * a.xStride +
                                   std::size_t(head) * a.xHeadStride + step * 32 + quad * 8;
            uint4 x;
            if constexpr (kFloat) {
                const float4 low = *reinterpret_cast<const float4*>(a.x + at),
                             high = *reinterpret_cast<const float4*>(a.x + at + 4);
                x = make_uint4(packBf16(low.x, low.y), packBf16(low.z, low.w), packBf16(high.x, high.y),
                               packBf16(high.z, high.w));
            } else {
                x = *reinterpret_cast<const uint4*>(a.xHalf + at);
            }
            mma16816(c[j], p.x, q.x, p.y, q.y, x.x, x.y);
            mma16816(c[j], p.z, q.z, p.w, q.w, x.z, x.w);
        }
    }
#pragma unroll
    for (int j = 0; j < kInputTiles; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int input = firstInput + j * 8 + quad * 2 + e % 2, row = firstRow + row8 + e / 2 * 8;
            if (input < a.n)
                a.y[std::size_t(input) * a.yStride + std::size_t(head) * a.yHeadStride + row] =
                    __float2bfloat16(c[j][e]);
        }
}

/// Rotates the last channels of a token's queries and writes them to q [queryHeads, dim].
__device__ inline void rotateQueries(const LatentTokens& t, const RotateArgs& a, const float* query, const float* cos,
                                     const float* sin, Bf16* q) {
    const int half = t.ropeDim / 2, latent = a.shape.dim - t.ropeDim;
    for (int i = threadIdx.x; i < a.shape.queryHeads * half; i += kThreads) {
        const int h = i / half, c = i % half;
        const Pair pair(a.interleaved, c, half);
        const float* from = query + std::size_t(h) * (t.nopeDim + t.ropeDim) + t.nopeDim;
        const float x = from[pair.low], y = from[pair.high];
        Bf16* to = q + std::size_t(h) * a.shape.dim + latent;
        to[pair.low] = __float2bfloat16(x * cos[c] - y * sin[c]);
        to[pair.high] = __float2bfloat16(y * cos[c] + x * sin[c]);
    }
}

/// Makes a token's key as it is stored. All threads of the thread block call this; it ends with a barrier.
__device__ inline void makeKey(const LatentTokens& t, const RotateArgs& a, const float* key, const float* cos,
                               const float* sin, float* out) {
    __shared__ float squares[kWarps];
    const int half = t.ropeDim / 2, latent = a.shape.dim - t.ropeDim;
    float sum = 0;
    for (int c = threadIdx.x; c < latent; c += kThreads) sum = fmaf(key[c], key[c], sum);
    sum = warpSum(sum);
    if (threadIdx.x % kWarp == 0) squares[threadIdx.x / kWarp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += squares[w];
    const float inverse = rsqrtf(sum / float(latent) + t.eps);
    const auto stored = [](float value) { return __bfloat162float(__float2bfloat16(value)); };
    for (int c = threadIdx.x; c < latent; c += kThreads) out[c] = stored(key[c] * inverse * t.norm[c]);
    for (int c = threadIdx.x; c < half; c += kThreads) {
        const Pair pair(a.interleaved, c, half);
        const float x = key[latent + pair.low], y = key[latent + pair.high];
        out[latent + pair.low] = stored(x * cos[c] - y * sin[c]);
        out[latent + pair.high] = stored(y * cos[c] + x * sin[c]);
    }
    __syncthreads();
}

/// Grid (rows).
__global__ void __launch_bounds__(kThreads) appendLatentKernel(AppendArgs a, LatentTokens t) {
    extern __shared__ float newKey[]; // [dim] as stored
    const int row = blockIdx.x, dim = a.shape.dim, bs = a.shape.blockSize, half = t.ropeDim / 2;
    letNextKernelStart();
    // Positions change only at a step's end, so they may be read before the wait.
    const int position = a.position[row];
    const bool active = a.active == nullptr || a.active[row] != 0;
    const Angles angles(a, row, position, half);
    waitForEarlierKernels();
    const bool reports = row == 0 && threadIdx.x == 0;
    if (reports) stamp(a.marks[0]);
    if (!active) return;
    rotateQueries(t, a, t.query + std::size_t(row) * t.queryStride, angles.cos, angles.sin,
                  a.q + std::size_t(row) * a.shape.queryHeads * dim);
    makeKey(t, a, t.key + std::size_t(row) * t.keyStride, angles.cos, angles.sin, newKey);
    Bf16* to = a.blocks != nullptr ? a.blocks + std::size_t(a.headFirst[row] + position / bs) * blockElements(a.shape) +
                                         std::size_t(position % bs) * dim
                                   : a.newKey + std::size_t(row) * dim;
    for (int c = threadIdx.x; c < dim; c += kThreads) to[c] = __float2bfloat16(newKey[c]);
    if (reports) stamp(a.marks[1]);
    appendToIndex(a.index, row, position, bs, dim, newKey, 0.f);
}

/// Grid (tokens).
__global__ void __launch_bounds__(kThreads) placeLatentKernel(PromptArgs a, LatentTokens t) {
    extern __shared__ float newKey[];
    const int token = blockIdx.x, position = a.firstPosition + token, dim = a.shape.dim, bs = a.shape.blockSize;
    const std::size_t angles = std::size_t(position) * (t.ropeDim / 2);
    letNextKernelStart();
    waitForEarlierKernels();
    const float *cos = a.cos + angles, *sin = a.sin + angles;
    rotateQueries(t, a, t.query + std::size_t(token) * t.queryStride, cos, sin,
                  a.q + std::size_t(token) * a.shape.queryHeads * dim);
    makeKey(t, a, t.key + std::size_t(token) * t.keyStride, cos, sin, newKey);
    Bf16* to = a.blocks + std::size_t(position / bs) * blockElements(a.shape) + std::size_t(position % bs) * dim;
    for (int c = threadIdx.x; c < dim; c += kThreads) to[c] = __float2bfloat16(newKey[c]);
}

} // namespace

void multiplyHeads(const Launch& how, const HeadProductArgs& a) {
    if (a.n == 0) return;
    const auto start = [&](auto kernel, int inputs) {
        const dim3 blocks(unsigned((a.rows + kWarps * 16 - 1) / (kWarps * 16)), unsigned(a.heads),
                          unsigned((a.n + inputs - 1) / inputs));
        launch(how, {blocks, dim3(kThreads)}, kernel, "multiplying per head", a);
    };
    if (a.x != nullptr)
        a.n <= 8 ? start(headKernel<1, true>, 8) : start(headKernel<4, true>, 32);
    else
        a.n <= 8 ? start(headKernel<1, false>, 8) : start(headKernel<4, false>, 32);
}

void appendLatent(const Launch& how, const AppendArgs& args, const LatentTokens& tokens) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows)), dim3(kThreads), std::size_t(args.shape.dim) * sizeof(float)},
           appendLatentKernel, "rotating and appending", args, tokens);
}

void placeLatentPrompt(const Launch& how, const PromptArgs& args, const LatentTokens& tokens) {
    if (args.n == 0) return;
    launch(how, {dim3(unsigned(args.n)), dim3(kThreads), std::size_t(args.shape.dim) * sizeof(float)},
           placeLatentKernel, "rotating the prompt", args, tokens);
}

} // namespace kvscope::cuda
