#include "kernels/cuda/diffusion/canvas_keep.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_room.cuh"
#include "kernels/cuda/diffusion/largest_in_order.cuh"

#include <string>

namespace kvscope::cuda {
namespace {

constexpr int kScoreThreads = 256, kScoreWarps = kScoreThreads / kWarp;

/// Writes the mean query of the block for each KV head: the sum over its group and the block's tokens, divided by all
/// query heads and tokens. Grid (rows, KV heads), a thread for each channel.
__global__ void meanKernel(KeepArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) stamp(a.scoreMark);
    const int row = int(blockIdx.x), g = int(blockIdx.y), c = int(threadIdx.x), dim = a.shape.dim,
              group = a.shape.queryHeads / a.shape.kvHeads;
    const KeepRow of = a.table[row];
    float sum = 0;
    for (int i = 0; i < a.blockTokens; ++i) {
        const std::size_t token = std::size_t(of.firstQuery + of.block + i);
        const Bf16* const q = a.q + (token * a.shape.queryHeads + std::size_t(g * group)) * dim + c;
        for (int h = 0; h < group; ++h) sum += __bfloat162float(q[h * dim]);
    }
    a.mean[(std::size_t(row) * a.shape.kvHeads + g) * dim + c] = sum / float(a.shape.queryHeads * a.blockTokens);
}

/// Writes a token's importance: the products of its keys with the mean queries, summed over the KV heads.
/// Grid (tokens / 8, rows): a warp takes a token outside the block.
__global__ void __launch_bounds__(kScoreThreads) importanceKernel(KeepArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int row = int(blockIdx.y), other = int(blockIdx.x) * kScoreWarps + int(threadIdx.x) / kWarp,
              lane = int(threadIdx.x) % kWarp, dim = a.shape.dim, bs = a.shape.blockSize;
    const KeepRow of = a.table[row];
    if (other >= of.tokens - a.blockTokens) return;
    const int position = other < of.block ? other : other + a.blockTokens;
    float sum = 0;
    for (int g = 0; g < a.shape.kvHeads; ++g) {
        const Bf16* const key =
            a.blocks +
            std::size_t(a.headFirst[of.sequence * a.shape.kvHeads + g] + position / bs) * blockElements(bs, dim) +
            std::size_t(position % bs) * dim;
        const float* const mean = a.mean + (std::size_t(row) * a.shape.kvHeads + g) * dim;
        for (int c = lane; c < dim; c += kWarp) sum = fmaf(mean[c], __bfloat162float(key[c]), sum);
    }
    sum = warpSum(sum);
    if (lane == 0) a.importance[std::size_t(row) * a.mostTokens + other] = sum;
}

/// Lists the tokens that stay: those with the largest importance within `kernel` neighbours of them. Grid (rows).
__global__ void __launch_bounds__(kListThreads) pickKernel(KeepArgs a) {
    extern __shared__ std::uint32_t shared[];
    __shared__ typename BlockCounter<kListWarps>::Shared counts;
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0 && threadIdx.x == 0) stamp(a.keepMark);
    const int row = int(blockIdx.x);
    const KeepRow of = a.table[row];
    const int others = of.tokens - a.blockTokens, reach = a.kernel / 2;
    const float* const importance = a.importance + std::size_t(row) * a.mostTokens;
    for (int i = int(threadIdx.x); i < others; i += kListThreads) {
        std::uint32_t best = 0;
        for (int j = max(0, i - reach); j < min(others, i + reach + 1); ++j)
            best = max(best, rankingKey(importance[j]));
        shared[i] = best;
    }
    std::int32_t* const list = a.kept + std::size_t(of.sequence) * a.mostKept;
    listLargest(shared, shared + a.mostTokens, others, of.kept, counts,
                [&](int at, int other) { list[at] = other < of.block ? other : other + a.blockTokens; });
}

/// Copies keys and values of the tokens that stay, one behind the other, into blocks of their own.
/// Grid (tokens that stay, KV heads, rows), a thread for each channel.
__global__ void copyKernel(KeepArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const int place = int(blockIdx.x), g = int(blockIdx.y), c = int(threadIdx.x), dim = a.shape.dim,
              bs = a.shape.blockSize;
    const KeepRow of = a.table[blockIdx.z];
    if (place >= of.kept) return;
    const int position = a.kept[std::size_t(of.sequence) * a.mostKept + place],
              head = of.sequence * a.shape.kvHeads + g;
    const Bf16* const from = a.blocks + std::size_t(a.headFirst[head] + position / bs) * blockElements(bs, dim);
    Bf16* const to = a.blocks + std::size_t(a.keptFirst[head] + place / bs) * blockElements(bs, dim);
    const std::size_t channel = std::size_t(bs) * dim + std::size_t(c) * bs; // of the values, behind the keys
    to[std::size_t(place % bs) * dim + c] = from[std::size_t(position % bs) * dim + c];
    to[channel + place % bs] = from[channel + position % bs];
}

} // namespace

void checkKeptTokens(const Launch& how, int mostTokens) {
    if (canList(how.blockShared, mostTokens)) return;
    throw Error(ErrorKind::Unsupported,
                "sparse-dllm chooses among " + std::to_string(mostTokens) +
                    " tokens, which is more than fit into the GPU's shared memory",
                "use --backend cpu, or a shorter prompt");
}

void scoreCanvasTokens(const Launch& how, const KeepArgs& args) {
    if (args.rows == 0) return;
    const unsigned rows = unsigned(args.rows), heads = unsigned(args.shape.kvHeads);
    launch(how, {dim3(rows, heads), dim3(unsigned(args.shape.dim))}, meanKernel, "averaging a block's queries", args);
    const unsigned tokens = unsigned((args.mostTokens + kScoreWarps - 1) / kScoreWarps);
    launch(how, {dim3(tokens, rows), dim3(kScoreThreads)}, importanceKernel, "scoring a canvas's tokens", args);
}

void keepCanvasTokens(const Launch& how, const KeepArgs& args) {
    if (args.rows == 0) return;
    const std::size_t bytes = listBytes(args.mostTokens);
    raiseShared(pickKernel, bytes, "preparing the choice of tokens that are kept");
    launch(how, {dim3(unsigned(args.rows)), dim3(kListThreads), bytes}, pickKernel, "choosing tokens that are kept",
           args);
    if (args.mostKept == 0) return;
    launch(how,
           {dim3(unsigned(args.mostKept), unsigned(args.shape.kvHeads), unsigned(args.rows)),
            dim3(unsigned(args.shape.dim))},
           copyKernel, "copying tokens that are kept", args);
}

} // namespace kvscope::cuda
