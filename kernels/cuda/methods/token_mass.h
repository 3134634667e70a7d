// H2O and SnapKV: how much attention single tokens receive. H2O adds the attention up over all steps, SnapKV over the
// last queries of a prompt.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/kv_shape.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct TokenMassArgs {
    AttentionShape shape;
    int rows = 0;
    const std::uint8_t* active = nullptr; // [rows] or null
    const __nv_bfloat16* q = nullptr;     // [rows, queries, queryHeads*dim], rotated
    const float* logSums = nullptr;       // [rows, queries, queryHeads] of the attention (DecodeAttentionArgs::logSums)
    int queries = 1;                      // query tokens of a row
    int firstPosition = -1;               // query i sees tokens up to firstPosition + i; -1: all queries see all tokens
    // Keys of (row, KV head): blocks 0, 1, .. from item * stride.
    const __nv_bfloat16* blocks = nullptr;
    std::int64_t stride = 0;             // in blocks
    const std::int32_t* count = nullptr; // [rows, kvHeads] tokens; null: maxTokens
    int maxTokens = 0;
    const float* bias = nullptr; // by token, or null; lists of (row, KV head) are biasStride apart
    std::int64_t biasStride = 0;
    float scale = 1, biasScale = 0;
    double* mass = nullptr; // [rows*kvHeads] lists, massStride apart
    std::int64_t massStride = 0;
};

/// mass[token] += sum over the queries and heads of a group of exp(logit - logSum).
void addTokenMass(const Launch& launch, const TokenMassArgs& args);

struct PoolArgs {
    int lists = 0, length = 0;
    const double* mass = nullptr; // `lists`, massStride apart
    std::int64_t massStride = 0;
    int kernel = 1;       // neighbours pooled into one, odd
    bool average = false; // the mean, where neighbours beyond the list's ends count as zeros; else the maximum
    float* scores = nullptr;
    std::int64_t scoreStride = 0;
};
/// scores[i] = the maximum or the mean of the masses around i, in float32.
void poolMass(const Launch& launch, const PoolArgs& args);

} // namespace kvscope::cuda
