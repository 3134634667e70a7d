// Double Sparsity and AsyncTLS: how a token's label is made of its key; see labels.h.
#pragma once

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/methods/labels.h"

namespace kvscope::cuda {

constexpr int kMostChannels = 128;

/// code = clamp(round((x - lowest) * scale)), where scale = 15 / range and a range of 0 counts as 1.
struct Rounding {
    float lowest, scale;
    __device__ Rounding(float least, float most) : lowest(least) {
        const float range = most - least;
        scale = 15.f / (range == 0.f ? 1.f : range);
    }
    __device__ std::uint32_t code(float x) const {
        return std::uint32_t(min(max(__float2int_rn((x - lowest) * scale), 0), 15));
    }
    __device__ float step() const { return 1.f / scale; }
};

/// Writes the label of one token of a KV head. A warp calls this. key: as it is cached; channel: the head's channels.
__device__ inline void writeLabelByWarp(const LabelStore& labels, int head, int token, const Bf16* key,
                                        const std::int32_t* channel) {
    const int words = labels.words(), lane = threadIdx.x % kWarp;
    std::uint32_t* codes = labels.codes + std::size_t(head) * words * labels.stride + token;
    const auto keyAt = [&](int i) { return __bfloat162float(key[channel[i]]); };
    if (labels.bits != 4) {
        for (int w = lane; w < words; w += kWarp)
            codes[std::size_t(w) * labels.stride] =
                packBf16(keyAt(2 * w), 2 * w + 1 < labels.channels ? keyAt(2 * w + 1) : 0.f);
        return;
    }
    float mine[kMostChannels / kWarp], least = INFINITY, most = -INFINITY;
#pragma unroll
    for (int turn = 0; turn < kMostChannels / kWarp; ++turn) {
        const int i = turn * kWarp + lane;
        mine[turn] = 0;
        if (i >= labels.channels) continue;
        mine[turn] = keyAt(i);
        least = fminf(least, mine[turn]), most = fmaxf(most, mine[turn]);
    }
    least = -warpMax(-least), most = warpMax(most);
    const Rounding rounding(least, most);
#pragma unroll
    for (int turn = 0; turn < kMostChannels / kWarp; ++turn) { // the codes of eight lanes become a word
        const int i = turn * kWarp + lane;
        if (turn * kWarp >= labels.channels) break;
        std::uint32_t word = i < labels.channels ? rounding.code(mine[turn]) << (4 * (lane % 8)) : 0;
#pragma unroll
        for (int offset = 1; offset < 8; offset *= 2) word |= __shfl_xor_sync(0xffffffffu, word, offset);
        if (lane % 8 == 0 && i < labels.channels) codes[std::size_t(i / 8) * labels.stride] = word;
    }
    if (lane != 0) return;
    labels.steps[std::size_t(head) * labels.stride + token] = rounding.step();
    labels.lowest[std::size_t(head) * labels.stride + token] = least;
}

} // namespace kvscope::cuda
