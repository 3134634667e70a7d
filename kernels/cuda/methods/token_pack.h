// Double Sparsity, InfiniGen by token, H2O, SnapKV, Locret and DMA by token attend to single tokens: this copies the
// chosen tokens into packed KV blocks, which decodeAttention reads (DecodeAttentionArgs::packedTokens). The tokens come
// from KV blocks or from a token store, which has a token's key and value side by side.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Elements of one token of one KV head in a token store: the key, then the value.
constexpr std::size_t tokenElements(int dim) { return std::size_t(2) * std::size_t(dim); }
constexpr std::size_t tokenBytes(int dim) { return tokenElements(dim) * 2; }

struct PackArgs {
    AttentionShape shape;
    int rows = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    const std::int32_t* tokens = nullptr; // [rows, kvHeads, capacity] tokens to pack, in this order
    const std::int32_t* count = nullptr;  // [rows, kvHeads]
    int capacity = 0;
    // Where tokens come from: a token store, which may be pinned host memory, or KV blocks. A (row, KV head)'s tokens
    // or blocks begin at `first`, counted in tokens or blocks; null: at item * stride.
    const __nv_bfloat16* store = nullptr;  // [.., 2*dim] key, then value
    const __nv_bfloat16* blocks = nullptr; // see blockElements
    const std::int64_t* first = nullptr;   // [rows*kvHeads]
    std::int64_t stride = 0;
    const std::int32_t* place = nullptr; // [rows, kvHeads, maxBlocks] where a block lies, from `first`; null: at its id
    int maxBlocks = 0;                   // of a list of places
    // Set where the newest token has not been stored yet: its position, key and value.
    const std::int32_t* position = nullptr;                     // [rows]
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim]
    const float* bias = nullptr;                                // biases by token; or null
    const std::int32_t* biasTokens = nullptr;                   // tokens whose biases are packed; null: `tokens`
    const std::int64_t* biasFirst = nullptr;                    // [rows*kvHeads]; null: at item * biasStride
    std::int64_t biasStride = 0;
    // Where tokens go.
    __nv_bfloat16* packed = nullptr; // [rows, kvHeads, packedBlocks] blocks; the rest of the last block becomes zeros
    float* packedBias = nullptr;     // [rows, kvHeads, packedBlocks*blockSize], with `bias`
    int packedBlocks = 0;            // at least capacity tokens
    std::uint64_t* mark = nullptr;
};
/// Packs the listed tokens of every (row, KV head), in the order of the list.
void packTokens(const Launch& launch, const PackArgs& args);

/// Copies the blocks of one sequence's prompt into a token store: head g's tokens begin at store + g*storeStride.
struct UnpackArgs {
    AttentionShape shape;
    int tokens = 0;
    const __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;           // in elements
    __nv_bfloat16* store = nullptr;
    std::int64_t storeStride = 0; // in tokens
};
void unpackPrompt(const Launch& launch, const UnpackArgs& args);

} // namespace kvscope::cuda
