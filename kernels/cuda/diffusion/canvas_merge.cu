#include "kernels/cuda/diffusion/canvas_merge.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/diffusion/active_tokens.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Merges the results that the splits of the keys have left for each query, by their largest logits and sums.
/// Grid (queries / 8, KV heads, rows): a warp takes a query.
__global__ void __launch_bounds__(kThreads) mergeKernel(ShareMergeArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const AttentionShape& shape = a.rows.shape;
    const int g = int(blockIdx.y), row = int(blockIdx.z), group = shape.queryHeads / shape.kvHeads, dim = shape.dim,
              lane = int(threadIdx.x) % kWarp, query = int(blockIdx.x) * kWarps + int(threadIdx.x) / kWarp;
    if (!a.rows.table[row].is(BlockRow::kTaken) || query >= __popcll(activeOf(a.rows, row, g)) * group) return;
    const std::size_t step = std::size_t(a.rows.block * group),
                      first = std::size_t(row * shape.kvHeads + g) * a.splits * step + query;
    float most = -INFINITY, sum = 0;
    for (int s = 0; s < a.splits; ++s) most = fmaxf(most, a.states[first + s * step].x);
    for (int s = 0; s < a.splits; ++s) {
        const float2 state = a.states[first + s * step];
        sum += exp2f((state.x - most) * kLog2e) * state.y;
    }
    const int token = query / group;
    Bf16* const out = a.out + (std::size_t(row * a.rows.block + token) * shape.queryHeads +
                               std::size_t(g * group + query - token * group)) *
                                  dim;
    for (int c = lane; c < dim; c += kWarp) {
        float value = 0;
        for (int s = 0; s < a.splits; ++s)
            value = fmaf(exp2f((a.states[first + s * step].x - most) * kLog2e), a.partial[(first + s * step) * dim + c],
                         value);
        out[c] = __float2bfloat16(value / sum);
    }
}

} // namespace

void mergeShares(const Launch& how, const ShareMergeArgs& args) {
    if (args.rows.rows == 0) return;
    launch(how,
           {dim3(unsigned((args.rows.queries() + kWarps - 1) / kWarps), unsigned(args.rows.shape.kvHeads),
                 unsigned(args.rows.rows)),
            dim3(kThreads)},
           mergeKernel, "merging shares of an attention", args);
}

} // namespace kvscope::cuda
