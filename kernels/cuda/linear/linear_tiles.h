// Stages qkv_linear, o_linear, ffn and lm_head with 9 to 16 inputs: products of bf16 weights as two tiles of the tensor
// cores.
#pragma once

#include "kernels/cuda/linear/linear_few.h"

namespace kvscope::cuda {

/// @param args bf16 inputs
void multiplyTiles(const Launch& launch, const FewInputs& args);

} // namespace kvscope::cuda
