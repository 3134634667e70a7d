// Stages qkv_linear, o_linear, ffn and lm_head with 1 to 16 inputs: products of bf16 weights through the tensor cores.
// Reading the weights takes longer than multiplying.
#pragma once

#include "kernels/cuda/linear/linear.h"

namespace kvscope::cuda {

constexpr int kFewRowInputs = 8; // few_rows.cuh
constexpr int kFewInputs = 16;   // linear_tiles.cu

struct FewInputs {
    DeviceMatrix w;                       // bf16
    const __nv_bfloat16* xHalf = nullptr; // [n, cols]; null: `x` is set
    const float* x = nullptr;             // [n, cols], rows xStride apart, normalised by `norm`: see fewTakeFloats
    int xStride = 0;
    Norm norm;
    int n = 0; // 1 to kFewInputs
    LinearOutput out;
    std::uint64_t* mark = nullptr;
};

/// Whether `x` may be set for n inputs of so many columns. `xHalf` may always be.
bool fewTakeFloats(int n, int cols);

/// W x for 1 to kFewInputs inputs, normalised first where `x` is set. Outputs as LinearOutput says.
void multiplyFew(const Launch& launch, const FewInputs& args);

} // namespace kvscope::cuda
