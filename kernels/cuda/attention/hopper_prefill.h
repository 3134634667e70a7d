// Attention of prompts on the Hopper generation alone (compute capability 9.0): warpgroup products, bulk copies and
// warps that only load (hopper_prefill.cu).
#pragma once

#include "kernels/cuda/attention/attention.h"

namespace kvscope::cuda {

/// Whether hopperPrefill can be launched: the GPU runs code for sm_90a and has the shared memory; blocks of 64 tokens,
/// heads whose parts of `blocks` and `tokenBias` begin where bulk copies can begin.
bool hopperPrefillFits(const Launch& launch, const PrefillAttentionArgs& args);

/// The same result as the kernel of prefillAttention, for which hopperPrefillFits has said yes.
void hopperPrefill(const Launch& launch, const PrefillAttentionArgs& args);

} // namespace kvscope::cuda
