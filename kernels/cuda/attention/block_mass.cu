#include "kernels/cuda/attention/block_mass.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

/// The first token that the query reaches.
__device__ int firstToken(const BlockMassArgs& a, int position) {
    return a.window > 0 ? max(0, position + 1 - a.window) : 0;
}

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPad = 8; // elements between the keys in shared memory, so that neighbouring lanes meet different banks

/// Writes the log sums of the units of a warp's logits of the tokens [begin, end). A lane takes a unit.
__device__ void logSumsOfUnits(const float* logits, int begin, int end, int unit, float* logSums) {
    __syncwarp();
    for (int u = begin / unit + int(threadIdx.x % kWarp); u * unit < end; u += kWarp) {
        const int first = max(begin, u * unit), last = min(end, (u + 1) * unit);
        float largest = -INFINITY, sum = 0;
        for (int token = first; token < last; ++token) largest = fmaxf(largest, logits[token]);
        for (int token = first; token < last; ++token) sum += expf(logits[token] - largest);
        logSums[u] = largest + logf(sum);
    }
    __syncwarp();
}

/// Grid: (blocks, kvHeads, rows). A warp takes a query head, and a lane every 32nd token.
__global__ void __launch_bounds__(kThreads) logSumKernel(BlockMassArgs a) {
    extern __shared__ __align__(16) unsigned char raw[];
    Bf16* keys = reinterpret_cast<Bf16*>(raw);
    const int block = blockIdx.x, g = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % kWarp,
              warp = threadIdx.x / kWarp;
    const int dim = a.shape.dim, size = a.shape.blockSize, group = a.shape.queryHeads / a.shape.kvHeads,
              stride = dim + kPad;
    letNextKernelStart();
    waitForEarlierKernels();
    if (block == 0 && g == 0 && row == 0 && threadIdx.x == 0) stamp(a.mark);
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position[row], newest = position / size, head = row * a.shape.kvHeads + g;
    const int begin = max(0, firstToken(a, position) - block * size); // of this block's tokens
    if (block > newest || begin >= size) return;

    const std::size_t elements = blockElements(a.shape); // keys, then values where they are stored
    const Bf16* from = a.blocks + (std::size_t(a.headFirst[head]) + block) * elements;
    if (a.slots > 0 && block == newest)
        for (int slot = 0; slot < a.slots; ++slot)
            if (a.map[std::size_t(head) * a.slots + slot] == block)
                from = a.pool + (std::size_t(head) * a.slots + slot) * elements;
    const int pieces = dim / 8; // of 16 bytes
    for (int i = threadIdx.x; i < size * pieces; i += kThreads)
        *reinterpret_cast<uint4*>(keys + i / pieces * stride + i % pieces * 8) =
            loadOnce(from + std::size_t(i / pieces) * dim + i % pieces * 8);
    __syncthreads();

    const float* bias = a.tokenBias != nullptr && a.biasScale != 0.f
                            ? a.tokenBias + a.biasFirst[head] + std::int64_t(block) * size
                            : nullptr;
    const int tokens = min(size, position + 1 - block * size), unit = a.unitTokens(), units = size / unit;
    float* logits = reinterpret_cast<float*>(keys + size * stride) + warp * size;
    for (int h = warp; h < group; h += kWarps) {
        const Bf16* q = a.q + (std::size_t(row) * a.shape.queryHeads + std::size_t(g * group + h)) * dim;
        float* logSums = a.logSums +
                         (std::size_t(row) * a.shape.queryHeads + std::size_t(g * group + h)) * a.maxUnits() +
                         block * units;
        float largest = -INFINITY, sum = 0;
        for (int token = begin + lane; token < tokens; token += kWarp) {
            float dot = 0;
            for (int c = 0; c < dim; c += 8) {
                const uint4 k = *reinterpret_cast<const uint4*>(keys + token * stride + c);
                const uint4 x = *reinterpret_cast<const uint4*>(q + c);
                dot += lowHalf(k.x) * lowHalf(x.x) + highHalf(k.x) * highHalf(x.x) + lowHalf(k.y) * lowHalf(x.y) +
                       highHalf(k.y) * highHalf(x.y) + lowHalf(k.z) * lowHalf(x.z) + highHalf(k.z) * highHalf(x.z) +
                       lowHalf(k.w) * lowHalf(x.w) + highHalf(k.w) * highHalf(x.w);
            }
            const float logit = dot * a.scale + (bias != nullptr ? a.biasScale * bias[token] : 0.f);
            if (units > 1) logits[token] = logit;
            const float next = fmaxf(largest, logit);
            sum = sum * expf(largest - next) + expf(logit - next);
            largest = next;
        }
        if (units > 1) {
            logSumsOfUnits(logits, begin, tokens, unit, logSums);
            continue;
        }
        const float all = warpMax(largest); // finite, because lane 0 always has a token
        sum = warpSum(largest == -INFINITY ? 0.f : sum * expf(largest - all));
        if (lane == 0) *logSums = all + logf(sum);
    }
}

/// Writes the attention mass of every block, the mean over the KV head's query heads, from the blocks' log sums.
/// Grid: (kvHeads, rows).
__global__ void __launch_bounds__(kThreads) massKernel(BlockMassArgs a) {
    __shared__ float warpValue[kWarps];
    const int g = blockIdx.x, row = blockIdx.y, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int first = firstToken(a, a.position[row]) / a.unitTokens(), blocks = a.position[row] / a.unitTokens() + 1,
              group = a.shape.queryHeads / a.shape.kvHeads; // `blocks` counts units where blocks are divided
    float* mass = a.mass + (std::size_t(row) * a.shape.kvHeads + g) * a.maxUnits();
    for (int b = first + int(threadIdx.x); b < blocks; b += kThreads) mass[b] = 0;
    for (int h = 0; h < group; ++h) {
        const float* logSums =
            a.logSums + (std::size_t(row) * a.shape.queryHeads + std::size_t(g * group + h)) * a.maxUnits();
        float largest = -INFINITY;
        for (int b = first + int(threadIdx.x); b < blocks; b += kThreads) largest = fmaxf(largest, logSums[b]);
        largest = warpMax(largest);
        if (lane == 0) warpValue[warp] = largest;
        __syncthreads();
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, warpValue[w]);
        __syncthreads();
        float sum = 0;
        for (int b = first + int(threadIdx.x); b < blocks; b += kThreads) sum += expf(logSums[b] - largest);
        sum = warpSum(sum);
        if (lane == 0) warpValue[warp] = sum;
        __syncthreads();
        sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += warpValue[w];
        __syncthreads();
        for (int b = first + int(threadIdx.x); b < blocks; b += kThreads)
            mass[b] += expf(logSums[b] - largest) / (sum * float(group));
    }
}

/// Writes the newest token's key into its block. Grid: (kvHeads, rows), a thread per channel.
__global__ void keepKernel(KeepKeysArgs a) {
    const int row = blockIdx.y, head = row * a.shape.kvHeads + int(blockIdx.x), size = a.shape.blockSize,
              dim = a.shape.dim;
    letNextKernelStart();
    waitForEarlierKernels();
    if (a.active != nullptr && a.active[row] == 0) return;
    const int position = a.position[row];
    Bf16* block = a.blocks + std::size_t(a.headFirst[head] + position / size) * blockElements(a.shape);
    block[position % size * dim + int(threadIdx.x)] = a.newKey[std::size_t(head) * dim + threadIdx.x];
}

} // namespace

void keepKeys(const Launch& how, const KeepKeysArgs& args) {
    if (args.rows == 0) return;
    launch(how, {dim3(unsigned(args.shape.kvHeads), unsigned(args.rows)), dim3(unsigned(args.shape.dim))}, keepKernel,
           "keeping keys for the oracle", args);
}

void measureBlockMass(const Launch& how, const BlockMassArgs& args) {
    if (args.rows == 0) return;
    const std::size_t logits = args.maxUnits() > args.maxBlocks ? kWarps * sizeof(float) : 0;
    const std::size_t shared =
        std::size_t(args.shape.blockSize) * (std::size_t(args.shape.dim + kPad) * sizeof(Bf16) + logits);
    allowShared(logSumKernel, shared, "preparing the oracle");
    launch(how,
           {dim3(unsigned(args.maxBlocks), unsigned(args.shape.kvHeads), unsigned(args.rows)), dim3(kThreads), shared},
           logSumKernel, "measuring the attention of every block", args);
    launch(how, {dim3(unsigned(args.shape.kvHeads), unsigned(args.rows)), dim3(kThreads)}, massKernel,
           "measuring the attention of every block", args);
}

} // namespace kvscope::cuda
