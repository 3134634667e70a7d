// Tests: the bf16 numbers that come back from coded blocks, by the function with which attention makes them.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/kv_format.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Block i of `format` begins at codes + i*format.blockBytes(), on the device; its numbers go to numbers +
/// i*format.numbers(), in the order of a bf16 block (kv_shape.h).
void readCodedBlocks(const Launch& launch, const KvFormat& format, const char* codes, int blocks,
                     __nv_bfloat16* numbers);

} // namespace kvscope::cuda
