// The tokens of the largest keys as a list in the order of the tokens, by one thread block.
#pragma once

#include "kernels/cuda/device/ranking.cuh"

#include <algorithm>
#include <cstddef>

namespace kvscope::cuda {

constexpr int kListWarps = 32, kListThreads = kListWarps * kWarp;
constexpr int kMostListed = 65535; // takeLargest counts in 16 bits

/// Shared memory of a thread block that chooses among so many tokens: their keys, then a bit for each.
constexpr std::size_t listBytes(int tokens) {
    return (std::size_t(tokens) + std::size_t(tokens + 31) / 32) * sizeof(std::uint32_t);
}

/// Whether a thread block can choose among so many tokens.
inline bool canList(std::size_t blockShared, int tokens) {
    return tokens <= kMostListed && listBytes(tokens) + sizeof(BlockCounter<kListWarps>::Shared) <= blockShared;
}

/// Calls put(at, token) for the `count` tokens of the largest keys[0, n) in shared memory, `at` counting up with the
/// token; of equal keys the lower tokens. bits: [(n + 31) / 32] in shared memory. All kListThreads threads call this;
/// the keys may have been written just before.
template <class Put>
__device__ void listLargest(const std::uint32_t* keys, std::uint32_t* bits, int n, int count,
                            BlockCounter<kListWarps>::Shared& counts, Put&& put) {
    const int words = (n + 31) / 32;
    for (int i = int(threadIdx.x); i < words; i += kListThreads) bits[i] = 0;
    __syncthreads();
    BlockCounter<kListWarps> counter(counts);
    takeLargest<kListWarps>(keys, n, count, counter, [&](int i) { atomicOr(bits + i / 32, 1u << (i % 32)); });
    __syncthreads();
    const int perThread = (words + kListThreads - 1) / kListThreads, begin = min(int(threadIdx.x) * perThread, words),
              end = min(begin + perThread, words);
    int mine = 0, all = 0;
    for (int w = begin; w < end; ++w) mine += __popc(bits[w]);
    int at = counter.prefix(mine, all);
    for (int w = begin; w < end; ++w)
        for (std::uint32_t left = bits[w]; left != 0; left &= left - 1) put(at++, w * 32 + __ffs(int(left)) - 1);
}

} // namespace kvscope::cuda
