// Stages qkv_linear, rope and compression of a step with up to eight sequences, in one launch: the query, key and value
// projections, the rotation, the new token's place in its block, its eviction score and its entry in the block index.
#pragma once

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/token/token.h"

namespace kvscope::cuda {

struct ProjectArgs {
    DeviceMatrix w;           // queries, keys and values of all heads
    const float* x = nullptr; // [rows, cols], normalised first
    Norm norm;
    const float* bias = nullptr; // [w.rows]
    float* plain = nullptr;      // [rows, w.rows] out: the products with their bias, before rotation; null: not wanted
    std::uint64_t* mark = nullptr;
};

/// Whether projectAndAppend can be used: up to eight rows that are not too wide, bf16 weights, a folded eviction head
/// or none, and no norms of heads, which would need all channels of a head before any of them is rotated.
bool canProjectAndAppend(const DeviceMatrix& w, const AppendArgs& append);

/// Does what Linear::run and rotateAndAppend do, in one launch. The thread that ends the products of two channels that
/// are rotated together rotates them and stores them. append.qkv is not read. Eviction scores come from the rows that
/// foldEvictionHead has written; append.eviction.delta is not read.
void projectAndAppend(const Launch& launch, const ProjectArgs& args, const AppendArgs& append);

/// Multiplies delta, the eviction head's matrix, with the value projection, whose weights are the last `width` rows of
/// W. An eviction score is then a product of the layer's input, like a key, and need not wait for the values. Each KV
/// head gets two bf16 rows behind those of W, where there must be room for them: the product's row, and what rounding
/// that row to bf16 has left.
void foldEvictionHead(const Launch& launch, const DeviceMatrix& w, const float* delta, int kvHeads, int width);

} // namespace kvscope::cuda
