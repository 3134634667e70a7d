// Methods that score blocks by pooled keys or key ranges (NOSA, DMA, InfLLM-V2, Quest, SparDA, AsyncTLS): the block
// index of one layer on the GPU, by which a selection scores blocks without reading their keys.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// What selection knows of the cached keys of one layer; the device form of core/kv/block_index.h. Windows, blocks and
/// tokens of (sequence, KV head) begin at windowFirst, blockFirst and tokenFirst [sequence*kvHeads + g]. Of sequences
/// with memory of their own the tables say for every layer where each lies (core/cuda/row_places.h).
struct DeviceIndex {
    int kernel = 32, stride = 16;
    bool exponentiates = false;          // pooled scores are means of exp(score)
    __nv_bfloat16* recentKeys = nullptr; // [sequence*kvHeads, kernel, dim] ring by token; null: keys are not pooled
    float* recentScores = nullptr;       // [sequence*kvHeads, kernel]; null: scores are not pooled
    __nv_bfloat16* pooledKeys = nullptr; // [windows, dim]
    float* pooledScores = nullptr;       // [windows]
    __nv_bfloat16* ranges = nullptr;     // [blocks, 2, dim] lowest, highest; null: the method has no ranges
    float* tokenScores = nullptr;        // [tokens] eviction scores; null without an eviction head
    const std::int64_t *windowFirst = nullptr, *blockFirst = nullptr, *tokenFirst = nullptr;
    const std::int64_t* pooledScoreFirst = nullptr; // of pooledScores; null: as windowFirst
    /// First element of a head's ring of keys or scores; null: the rings of all heads follow each other.
    const std::int64_t *recentKeyFirst = nullptr, *recentScoreFirst = nullptr;
#ifdef __CUDACC__
    __device__ float* pooledScoresOf(int head) const {
        return pooledScores + (pooledScoreFirst != nullptr ? pooledScoreFirst : windowFirst)[head];
    }
#endif
};

} // namespace kvscope::cuda
