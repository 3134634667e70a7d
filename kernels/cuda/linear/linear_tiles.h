// Products of bf16 weights with 9 to 16 inputs: two tiles of the tensor cores.
#pragma once

#include "kernels/cuda/linear/linear_few.h"

namespace kvscope::cuda {

/// @param args bf16 inputs
void multiplyTiles(const Launch& launch, const FewInputs& args);

} // namespace kvscope::cuda
