// A step of a few sequences: a layer's query, key and value projections and all that becomes of them at once.
#pragma once

#include "kernels/cuda/linear.h"
#include "kernels/cuda/token.h"

namespace kvscope::cuda {

struct ProjectArgs {
    DeviceMatrix w;           // queries, keys and values of all heads
    const float* x = nullptr; // [rows, cols], normalised first
    Norm norm;
    const float* bias = nullptr; // [w.rows]
    float* plain = nullptr;      // [rows, w.rows] the products before rotation, where somebody wants them; or null
    std::uint64_t* mark = nullptr;
};

/// Whether projectAndAppend takes them: up to eight rows, bf16 weights, no norms of heads, which need whole heads.
bool canProjectAndAppend(const DeviceMatrix& w, const AppendArgs& append);

/// What Linear::run and rotateAndAppend do, in one launch: the thread that has a pair of channels rotates and stores
/// it. append.qkv is not read; of an eviction head the folded rows are, in place of delta.
void projectAndAppend(const Launch& launch, const ProjectArgs& args, const AppendArgs& append);

/// delta's product with the value projection, W's last rows: an eviction score is known before there are values then.
/// Written after the rows of W, where there is room for 2 kvHeads more: a KV head's row, and what bf16 leaves of it.
void foldEvictionHead(const Launch& launch, const DeviceMatrix& w, const float* delta, int kvHeads, int width);

} // namespace kvscope::cuda
