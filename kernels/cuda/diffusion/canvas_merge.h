// Stage stage2 and attention of a forward of few tokens: what several thread blocks made of shares of the keys becomes
// one softmax.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct ShareMergeArgs {
    BlockRows rows; // of blockAttention; the tokens that attend are the first ones of each row
    int splits = 1; // of blockAttention; every row has so many keys that no split is empty
    // As BlockAttentionArgs has them.
    const float* partial = nullptr;
    const float2* states = nullptr;
    __nv_bfloat16* out = nullptr;
};
/// Makes one softmax of the results of all splits and writes the attention of each token to `out`.
void mergeShares(const Launch& launch, const ShareMergeArgs& args);

} // namespace kvscope::cuda
