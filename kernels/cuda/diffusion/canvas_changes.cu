#include "kernels/cuda/diffusion/canvas_changes.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/largest_in_order.cuh"

#include <string>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__device__ inline double sumOfWarp(double value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/// The cosine of two vectors, by their product and their square lengths, as core/diffusion/changed_values.h computes
/// it.
__device__ inline double likenessOf(double product, double ofNow, double ofBefore) {
    constexpr double kShortest = 1e-8, kSame = 1e-12;
    const double cosine = product / (fmax(sqrt(ofNow), kShortest) * fmax(sqrt(ofBefore), kShortest));
    return cosine > 1 - kSame ? 1 : cosine;
}

/// Writes how far each token's values have turned since it was computed before (1 - cosine), and stores the new values.
/// Grid (tokens / 8, rows): a warp takes a token of a canvas.
__global__ void __launch_bounds__(kThreads) compareKernel(ChangeArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.mark);
    const ChangeRow of = a.table[blockIdx.y];
    const int token = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp,
              dim = a.shape.dim, heads = a.shape.kvHeads, bs = a.shape.blockSize;
    if (token >= of.tokens) return;
    const int position = of.prompt + token;
    const float* const now = a.qkv + std::size_t(of.firstValue + token) * a.stride + a.valueAt;
    double product = 0, ofNow = 0, ofBefore = 0;
    for (int i = lane; i < heads * dim; i += kWarp) {
        const int g = i / dim, c = i - g * dim;
        Bf16* const stored =
            a.blocks + std::size_t(a.headFirst[of.sequence * heads + g] + position / bs) * blockElements(bs, dim) +
            std::size_t(bs) * dim + std::size_t(c) * bs + position % bs;
        const Bf16 rounded = __float2bfloat16(now[i]);
        const Bf16 other =
            a.compared != nullptr ? a.compared[std::size_t(of.firstCompared + token) * (heads * dim) + i] : *stored;
        const double x = double(__bfloat162float(rounded)), y = double(__bfloat162float(other));
        product += x * y, ofNow += x * x, ofBefore += y * y;
        *stored = rounded;
    }
    product = sumOfWarp(product), ofNow = sumOfWarp(ofNow), ofBefore = sumOfWarp(ofBefore);
    if (lane == 0)
        a.changes[std::size_t(of.sequence) * a.mostTokens + token] =
            float(fmax(0.0, 1 - likenessOf(product, ofNow, ofBefore)));
}

/// Lists the tokens that changed most, which this forward computes, with their places and where their numbers go.
/// Grid (rows).
__global__ void __launch_bounds__(kListThreads) chooseKernel(ChangeArgs a) {
    extern __shared__ std::uint32_t shared[];
    __shared__ typename BlockCounter<kListWarps>::Shared counts;
    letNextKernelStart();
    waitForEarlierKernels();
    const ChangeRow of = a.table[blockIdx.x];
    const float* const changes = a.changes + std::size_t(of.sequence) * a.mostTokens;
    for (int i = int(threadIdx.x); i < of.tokens; i += kListThreads) shared[i] = rankingKey(changes[i]);
    std::int32_t* const list = a.computed + std::size_t(of.sequence) * a.mostComputed;
    listLargest(shared, shared + a.mostTokens, of.tokens, of.count, counts, [&](int at, int token) {
        const int position = of.prompt + token, place = of.firstPlace + at;
        list[at] = position;
        a.places[place] = {of.sequence, position, position + 1, BlockRow::kTaken};
        a.sources[place] = of.firstValue + token;
        a.targets[place] = of.firstKept + position;
    });
}

/// Keeps the values of a canvas's tokens for comparisons in later forwards. Grid (rows): a row is one token.
__global__ void __launch_bounds__(kThreads) keepKernel(KeepValuesArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const BlockRow of = a.rows.table[blockIdx.x];
    if (!of.is(BlockRow::kTaken) || of.first < a.prompt[of.sequence]) return;
    const int width = a.rows.shape.kvHeads * a.rows.shape.dim;
    const float* const from = a.qkv + std::size_t(blockIdx.x) * a.stride + a.valueAt;
    Bf16* const to = a.compared + std::ptrdiff_t(a.comparedFirst[of.sequence] + of.first) * width;
    for (int i = int(threadIdx.x); i < width; i += kThreads) to[i] = __float2bfloat16(from[i]);
}

} // namespace

void checkChangedTokens(const Launch& how, int mostTokens) {
    if (canList(how.blockShared, mostTokens)) return;
    throw Error(ErrorKind::Unsupported,
                "cache=dllm chooses among " + std::to_string(mostTokens) +
                    " tokens, which is more than fit into the GPU's shared memory",
                "use --backend cpu, or fewer new tokens");
}

void compareValues(const Launch& how, const ChangeArgs& args) {
    if (args.rows == 0) return;
    const unsigned tokens = unsigned((args.mostTokens + kWarps - 1) / kWarps);
    launch(how, {dim3(tokens, unsigned(args.rows)), dim3(kThreads)}, compareKernel, "comparing values", args);
}

void chooseChanged(const Launch& how, const ChangeArgs& args) {
    if (args.rows == 0) return;
    const std::size_t bytes = listBytes(args.mostTokens);
    raiseShared(chooseKernel, bytes, "preparing the choice of changed tokens");
    launch(how, {dim3(unsigned(args.rows)), dim3(kListThreads), bytes}, chooseKernel, "choosing changed tokens", args);
}

void keepValues(const Launch& how, const KeepValuesArgs& args) {
    if (args.rows.rows == 0) return;
    launch(how, {dim3(unsigned(args.rows.rows)), dim3(kThreads)}, keepKernel, "keeping values", args);
}

} // namespace kvscope::cuda
