// Products of bf16 weights with a few inputs through the tensor cores, bound by reading the weights.
#pragma once

#include "kernels/cuda/linear.h"

namespace kvscope::cuda {

constexpr int kFewInputs = 16;

struct FewInputs {
    DeviceMatrix w;                       // bf16
    const __nv_bfloat16* xHalf = nullptr; // [n, cols], or
    const float* x = nullptr;             // [n, cols], rows xStride apart, normed on the way: see fewTakeFloats
    int xStride = 0;
    Norm norm;
    int n = 0; // 1 to kFewInputs
    LinearOutput out;
    std::uint64_t* mark = nullptr;
};

/// Whether so many float inputs are normed on the way. bf16 inputs of any width are taken.
bool fewTakeFloats(int n, int cols);

void multiplyFew(const Launch& launch, const FewInputs& args);

} // namespace kvscope::cuda
