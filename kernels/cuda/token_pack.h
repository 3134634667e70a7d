// Tokens taken one by one: packed into KV blocks of their own, which decodeAttention reads like any others
// (DecodeAttentionArgs::packedTokens), and the store they are taken from, token by token.
#pragma once

#include "kernels/cuda/check.h"
#include "kernels/cuda/kv_shape.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Key, then value: what one token of one KV head is in a store by token.
constexpr std::size_t tokenElements(int dim) { return std::size_t(2) * dim; }
constexpr std::size_t tokenBytes(int dim) { return tokenElements(dim) * 2; }

struct PackArgs {
    AttentionShape shape;
    int rows = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    const std::int32_t* tokens = nullptr; // [rows, kvHeads, capacity] what is packed, in this order
    const std::int32_t* count = nullptr;  // [rows, kvHeads]
    int capacity = 0;
    // From a store by token, which may be pinned host memory, or from KV blocks. Lists of a (row, KV head) begin at
    // `first`, in tokens or blocks; null: at item * stride.
    const __nv_bfloat16* store = nullptr;  // [.., 2*dim] key, then value
    const __nv_bfloat16* blocks = nullptr; // see blockElements
    const std::int64_t* first = nullptr;   // [rows*kvHeads]
    std::int64_t stride = 0;
    const std::int32_t* place = nullptr; // [rows, kvHeads, maxBlocks] where a block lies, from `first`; null: at its id
    int maxBlocks = 0;                   // with it
    // The newest token may not be there yet; null: it is.
    const std::int32_t* position = nullptr;                     // [rows]
    const __nv_bfloat16 *newKey = nullptr, *newValue = nullptr; // [rows, kvHeads*dim]
    const float* bias = nullptr;                                // by token, or null
    const std::int32_t* biasTokens = nullptr;                   // like `tokens`, of the biases; null: those
    const std::int64_t* biasFirst = nullptr;                    // [rows*kvHeads]; null: at item * biasStride
    std::int64_t biasStride = 0;
    // To
    __nv_bfloat16* packed = nullptr; // [rows, kvHeads, packedBlocks] blocks; filled with zeros to a whole block
    float* packedBias = nullptr;     // [rows, kvHeads, packedBlocks*blockSize], with `bias`
    int packedBlocks = 0;            // at least capacity tokens
    std::uint64_t* mark = nullptr;
};
void packTokens(const Launch& launch, const PackArgs& args);

/// Blocks of one sequence's prompt into a store by token: head g's tokens begin at store + g*storeStride.
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
