// Stages qkv_linear, o_linear, ffn and lm_head with many inputs: cuBLASLt, loaded at run time. The program starts and
// works without it.
#pragma once

#include "kernels/cuda/linear/linear.h"

#include <memory>
#include <string>

namespace kvscope::cuda {

class MatrixLibrary {
public:
    /// Null when the library is not installed.
    static std::unique_ptr<MatrixLibrary> load();
    ~MatrixLibrary();

    /// out.y (+)= x W^T in float, or half = x W^T in bf16, rows `halfStride` apart, when `half` is set. No bias.
    void multiply(cudaStream_t stream, const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
                  __nv_bfloat16* half, int halfStride);
    const char* description() const { return description_.c_str(); }

private:
    MatrixLibrary();
    struct Calls;
    std::unique_ptr<Calls> calls_;
    std::string description_;
};

} // namespace kvscope::cuda
