// Stages qkv_linear, rope and o_linear of models with latent attention: products of every head into and out of the
// latent space, and the normalisation and rotation of a token's query and key.
#pragma once

#include "kernels/cuda/token/token.h"

namespace kvscope::cuda {

/// y[i, h, :] = W_h x[i, h, :], bf16 weights [heads, rows, cols]. cols a multiple of 32, rows of 16; strides in
/// elements, multiples of 8. Exactly one of `x` and `xHalf`.
struct HeadProductArgs {
    const __nv_bfloat16* w = nullptr;
    int n = 0, heads = 0, rows = 0, cols = 0;
    const float* x = nullptr;
    const __nv_bfloat16* xHalf = nullptr;
    int xStride = 0, xHeadStride = 0;
    __nv_bfloat16* y = nullptr;
    int yStride = 0, yHeadStride = 0;
};
void multiplyHeads(const Launch& launch, const HeadProductArgs& args);

/// The tokens' queries and keys as the projections have made them.
struct LatentTokens {
    const float* query = nullptr; // token i, head h at query + i*queryStride + h*(nopeDim + ropeDim)
    const float* key = nullptr;   // [latent | rotated part] at key + i*keyStride
    int queryStride = 0, keyStride = 0, nopeDim = 0, ropeDim = 0;
    const float* norm = nullptr; // [latent]
    float eps = 0.f;
};

/// In place of rotateAndAppend: normalises and rotates the newest token's key, writes it into its block and into the
/// block index, and rotates the last channels of the queries. multiplyHeads makes the first channels of the queries.
void appendLatent(const Launch& launch, const AppendArgs& args, const LatentTokens& tokens);
/// In place of rotatePrompt: the same for the tokens of a prompt, without the block index.
void placeLatentPrompt(const Launch& launch, const PromptArgs& args, const LatentTokens& tokens);

} // namespace kvscope::cuda
