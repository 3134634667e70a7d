#include "kernels/block_worth.h"
#include "kernels/cuda/device/lane_dot.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/methods/far_blocks.h"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Grid (listed blocks, block sets, rows). A warp takes a few tokens and all queries of the group.
template <int kDim> __global__ void __launch_bounds__(kThreads) rankKernel(FarRankArgs a) {
    constexpr int kLanes = kDim / 8, kTogether = kWarp / kLanes; // as in mergeKernel
    __shared__ float warpWorth[kWarps];
    const FarMergeArgs& m = a.merged;
    const AttentionShape& s = m.memory.shape;
    const int entry = blockIdx.x, set = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % kWarp,
              warp = threadIdx.x / kWarp, part = lane % kLanes, group = s.queryHeads / s.kvHeads, bs = s.blockSize;
    const int firstItem = row * s.kvHeads + set * a.shared;
    letNextKernelStart();
    waitForEarlierKernels();
    if (m.active[row] == 0 || entry >= m.listCount[firstItem]) return;
    const std::size_t listed = std::size_t(firstItem) * m.capacity + entry;
    const int block = m.listBlock[listed];
    const bool cached = entry < m.farCount[firstItem] && block >= a.initBlocks;
    float worth = 0;
    for (int g = 0; g < a.shared && cached; ++g) {
        const int item = firstItem + g;
        const Bf16* keys =
            m.blocks +
            std::size_t(m.headFirst[item] + m.listSlot[listed + std::size_t(g) * m.capacity]) * blockElements(bs, kDim);
        const float* bias = m.tokenBias != nullptr && m.biasScale != 0.f
                                ? m.tokenBias + m.biasFirst[item] + std::int64_t(block) * bs
                                : nullptr;
        for (int base = warp * kTogether; base < bs; base += kWarps * kTogether) {
            const int t = base + lane / kLanes; // blocks are multiples of 16 tokens
            const uint4 k = *reinterpret_cast<const uint4*>(keys + std::size_t(t) * kDim + part * 8);
            for (int h = 0; h < group; ++h) {
                const std::size_t head = std::size_t(item) * group + h;
                const float dot = dotOverLanes<kLanes>(k, a.farQ + head * kDim + part * 8);
                const float near = m.nearLogSums[head], far = m.farLogSums[head], most = fmaxf(near, far);
                const float total = most + logf(expf(near - most) + expf(far - most));
                if (part == 0)
                    worth += exp2f((dot * m.scale + (bias != nullptr ? m.biasScale * bias[t] : 0.f) - total) * kLog2e);
            }
        }
    }
    worth = warpSum(worth);
    if (lane == 0) warpWorth[warp] = worth;
    __syncthreads();
    if (int(threadIdx.x) >= a.shared) return;
    worth = 0;
    for (int w = 0; w < kWarps; ++w) worth += warpWorth[w];
    int use = kLeavesFirst;
    if (cached) {
        const int later = __float2int_rn(a.usesPerDoubling * log2f(worth)); // worth 0: the lowest integer
        const std::int64_t at = std::int64_t(m.position[row]) * kUsesPerStep + kFirstUse + later;
        use = int(min(max(at, std::int64_t(kLeavesFirst + 1)), std::int64_t(kLastUse)));
    }
    const std::size_t mine = std::size_t(threadIdx.x);
    a.lastUse[(firstItem + mine) * a.slots + m.listSlot[listed + mine * m.capacity]] = use;
}

} // namespace

void rankFarBlocks(const Launch& how, const FarRankArgs& args) {
    const FarMergeArgs& merged = args.merged;
    if (merged.rows == 0) return;
    const AttentionShape& shape = merged.memory.shape;
    launch(
        how,
        {dim3(unsigned(merged.capacity), unsigned(shape.kvHeads / args.shared), unsigned(merged.rows)), dim3(kThreads)},
        shape.dim == 64 ? rankKernel<64> : rankKernel<128>, "ranking blocks", args);
}

} // namespace kvscope::cuda
