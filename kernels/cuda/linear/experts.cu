#include "kernels/cuda/linear/experts.h"

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ranking.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__device__ inline float dot4(const float4& a, const float4& b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

/// Writes the router's logits of each token, which is normalised first where there is a norm.
/// Grid (rows of the router / 8, tokens / kTokens): a warp takes one row of the router and kTokens tokens.
template <int kTokens> __global__ void __launch_bounds__(kThreads) routeKernel(RouteArgs a) {
    const int lane = threadIdx.x % kWarp, expert = blockIdx.x * kWarps + threadIdx.x / kWarp,
              first = blockIdx.y * kTokens;
    letNextKernelStart();
    waitForEarlierKernels();
    if (expert >= a.rows) return;
    const float4* row = reinterpret_cast<const float4*>(a.router + std::size_t(expert) * a.hidden);
    float dot[kTokens] = {}, squares[kTokens] = {};
    for (int i = lane; i < a.hidden / 4; i += kWarp) {
        float4 w = row[i];
        if (a.norm.weight != nullptr) {
            const float4 u = reinterpret_cast<const float4*>(a.norm.weight)[i];
            w.x *= u.x, w.y *= u.y, w.z *= u.z, w.w *= u.w;
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const int token = min(first + t, a.n - 1);
            const float4 x = reinterpret_cast<const float4*>(a.x + std::size_t(token) * a.hidden)[i];
            dot[t] += dot4(x, w);
            squares[t] += dot4(x, x);
        }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        const float all = warpSum(dot[t]), square = warpSum(squares[t]);
        const float scale = a.norm.weight != nullptr ? rsqrtf(square / float(a.hidden) + a.norm.eps) : 1.f;
        if (lane == 0 && first + t < a.n) a.logits[std::size_t(first + t) * a.rows + expert] = all * scale;
    }
}

/// The largest key of a warp and, of equal ones, the lowest index.
__device__ inline int bestOf(std::uint32_t key, int index) {
    std::uint64_t both = std::uint64_t(key) << 32 | (0xffffffffu - std::uint32_t(index));
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const std::uint64_t other = __shfl_xor_sync(0xffffffffu, both, offset);
        both = other > both ? other : both;
    }
    return int(0xffffffffu - std::uint32_t(both));
}

/// Chooses the experts of each token by ExpertRule and writes them with their weights. Grid (tokens), one warp each.
/// Shared memory has the scores [count] and then their keys [count].
__global__ void __launch_bounds__(kWarp) chooseKernel(ChooseArgs a) {
    extern __shared__ float scores[];
    const ExpertRule& rule = a.rule;
    std::uint32_t* keys = reinterpret_cast<std::uint32_t*>(scores + rule.count);
    const int lane = threadIdx.x, token = blockIdx.x;
    letNextKernelStart();
    waitForEarlierKernels();
    const float* logits = a.logits + std::size_t(token) * a.stride;
    if (rule.sigmoid) {
        for (int e = lane; e < rule.count; e += kWarp) scores[e] = 1.f / (1.f + expf(-logits[e]));
    } else {
        float most = -INFINITY, sum = 0;
        for (int e = lane; e < rule.count; e += kWarp) most = fmaxf(most, logits[e]);
        most = warpMax(most);
        for (int e = lane; e < rule.count; e += kWarp) sum += scores[e] = expf(logits[e] - most);
        sum = warpSum(sum);
        for (int e = lane; e < rule.count; e += kWarp) scores[e] /= sum;
    }
    const auto ranking = [&](int e) { return scores[e] + (a.choiceBias != nullptr ? a.choiceBias[e] : 0.f); };
    for (int e = lane; e < rule.count; e += kWarp) keys[e] = rankingKey(ranking(e));
    __syncwarp();
    if (rule.groupsUsed < rule.groups) { // lane g works out the rank of group g
        const int size = rule.count / rule.groups;
        std::uint32_t group = 0;
        if (lane < rule.groups) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = 0; i < size; ++i) {
                const float score = ranking(lane * size + i);
                second = fmaxf(second, fminf(first, score));
                first = fmaxf(first, score);
            }
            group = rankingKey(!rule.bestTwo || size == 1 ? first : first + second);
        }
        bool kept = false;
        for (int i = 0; i < rule.groupsUsed; ++i)
            if (bestOf(group, lane) == lane) kept = true, group = 0;
        if (lane < rule.groups && !kept)
            for (int i = 0; i < size; ++i) keys[lane * size + i] = rankingKey(-INFINITY);
        __syncwarp();
    }
    float sum = 0, mine = 0;
    int chosen = 0;
    for (int i = 0; i < rule.used; ++i) {
        std::uint32_t key = 0;
        int index = rule.count - 1;
        for (int e = lane; e < rule.count; e += kWarp)
            if (keys[e] > key) key = keys[e], index = e;
        const int best = bestOf(key, index);
        sum += scores[best];
        if (lane == i) chosen = best, mine = scores[best];
        if (lane == 0) keys[best] = 0;
        __syncwarp();
    }
    if (lane < rule.used) {
        const std::size_t at = std::size_t(token) * rule.used + lane;
        a.chosen[at] = chosen;
        a.weights[at] = mine * (rule.normalise ? rule.scale / (sum + 1e-20f) : rule.scale);
    }
}

/// Lists for each expert the choices (token * used + rank) that named it. A warp per expert goes through all choices.
__global__ void __launch_bounds__(kThreads) listKernel(ChooseArgs a) {
    const int lane = threadIdx.x % kWarp, expert = blockIdx.x * kWarps + threadIdx.x / kWarp, all = a.n * a.rule.used;
    letNextKernelStart();
    waitForEarlierKernels();
    if (expert >= a.rule.count) return;
    std::int32_t* pairs = a.pairs + std::size_t(expert) * a.capacity;
    int count = 0;
    for (int base = 0; base < all; base += kWarp) {
        const int at = base + lane;
        const bool here = at < all && a.chosen[at] == expert;
        const unsigned which = __ballot_sync(0xffffffffu, here);
        const int place = count + __popc(which & ((1u << lane) - 1));
        if (here && place < a.capacity) pairs[place] = at;
        count += __popc(which);
    }
    if (lane == 0) a.counts[expert] = min(count, a.capacity);
}

/// Adds the weighted results of a token's experts, and of the shared expert, to x. Grid (tokens).
__global__ void __launch_bounds__(kThreads) combineKernel(CombineArgs a) {
    const int token = blockIdx.x;
    letNextKernelStart();
    waitForEarlierKernels();
    float4* x = reinterpret_cast<float4*>(a.x + std::size_t(token) * a.hidden);
    const float gate =
        a.sharedGate != nullptr ? 1.f / (1.f + expf(-a.sharedGate[std::size_t(token) * a.gateStride])) : 1.f;
    for (int i = threadIdx.x; i < a.hidden / 4; i += kThreads) {
        float4 sum = make_float4(0, 0, 0, 0);
        const auto add = [&](float weight, const float* from) {
            const float4 value = reinterpret_cast<const float4*>(from)[i];
            sum.x = fmaf(weight, value.x, sum.x), sum.y = fmaf(weight, value.y, sum.y);
            sum.z = fmaf(weight, value.z, sum.z), sum.w = fmaf(weight, value.w, sum.w);
        };
        for (int k = 0; k < a.used; ++k) {
            const std::size_t pair = std::size_t(token) * a.used + k;
            add(a.weights[pair], a.results + pair * a.hidden);
        }
        if (a.shared != nullptr) add(gate, a.shared + std::size_t(token) * a.hidden);
        const float4 before = x[i];
        x[i] = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
    }
}

} // namespace

void routeTokens(const Launch& how, const RouteArgs& a) {
    if (a.n == 0) return;
    constexpr int kTogether = 8;
    const unsigned rows = unsigned((a.rows + kWarps - 1) / kWarps);
    if (a.n < 4 * kTogether)
        launch(how, {dim3(rows, unsigned(a.n)), dim3(kThreads)}, routeKernel<1>, "routing", a);
    else
        launch(how, {dim3(rows, unsigned((a.n + kTogether - 1) / kTogether)), dim3(kThreads)}, routeKernel<kTogether>,
               "routing", a);
}

void chooseExpertsOnDevice(const Launch& how, const ChooseArgs& a) {
    const ExpertRule& rule = a.rule;
    if (rule.count > kMostExperts || rule.used > kMostUsed || rule.used > rule.count || rule.groups > kMostExpertGroups)
        throw Error(ErrorKind::Unsupported, "the GPU backend cannot choose among so many experts", "use --backend cpu");
    if (a.n == 0) return;
    launch(how, {dim3(unsigned(a.n)), dim3(kWarp), std::size_t(rule.count) * 2 * sizeof(float)}, chooseKernel,
           "choosing experts", a);
    launch(how, {dim3(unsigned((rule.count + kWarps - 1) / kWarps)), dim3(kThreads)}, listKernel,
           "listing the experts' tokens", a);
}

void combineExperts(const Launch& how, const CombineArgs& a) {
    if (a.n == 0) return;
    launch(how, {dim3(unsigned(a.n)), dim3(kThreads)}, combineKernel, "adding the experts", a);
}

} // namespace kvscope::cuda
