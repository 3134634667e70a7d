// Attention of blocks on the Hopper generation alone (compute capability 9.0): warpgroup products, bulk copies of whole
// tiles and a warp that only loads (hopper_blocks.cu).
#pragma once

#include "kernels/cuda/diffusion/block_attention.h"

namespace kvscope::cuda {

/// Whether hopperBlocks can be launched: the GPU runs code for sm_90a and has the shared memory; blocks of 16, 32 or 64
/// tokens that begin where bulk copies can begin; the splits' results are wanted; all tokens share a list of pages.
bool hopperBlocksFit(const Launch& launch, const BlockAttentionArgs& args);

/// Writes what blockAttention would write to `partial` and `states`, for which hopperBlocksFit has said yes.
void hopperBlocks(const Launch& launch, const BlockAttentionArgs& args);

} // namespace kvscope::cuda
