// Stages qkv_linear, o_linear, ffn and lm_head with many inputs: cuBLASLt, loaded at run time. The program starts and
// works without it.
#pragma once

#include "kernels/cuda/linear/linear.h"

#include <cstddef>
#include <memory>
#include <string>

namespace kvscope::cuda {

class MatrixLibrary {
public:
    /// Device memory that the library works in.
    static constexpr std::size_t kWorkspaceBytes = std::size_t(32) << 20;

    /// Finds the library; needs no GPU. Null when it is not installed.
    static std::unique_ptr<MatrixLibrary> load();
    /// Begins to use the library. workspace: kWorkspaceBytes of device memory, which must outlive this object. @return
    /// false where the library refuses this GPU
    bool open(std::byte* workspace);
    ~MatrixLibrary();

    /// Which of the library's algorithms multiplies.
    struct Algorithm {
        int candidate = 0;  // in the order in which the library proposes them; where it has fewer, the first
        bool exact = false; // proposed for n itself and not for proposedInputs(n), for comparisons
    };
    /// out.y (+)= x W^T in float, or half = x W^T in bf16, rows `halfStride` apart, when `half` is set. No bias.
    void multiply(cudaStream_t stream, const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
                  __nv_bfloat16* half, int halfStride, Algorithm algorithm);
    /// How many algorithms the library proposes for such a product; a multiply() with a larger `candidate` takes the
    /// first.
    int proposals(const DeviceMatrix& w, int n, const LinearOutput& out, const __nv_bfloat16* half, int halfStride);
    const char* description() const { return description_.c_str(); }
    int version() const { return version_; } // cublasLtGetVersion()

private:
    MatrixLibrary();
    struct Calls;
    std::unique_ptr<Calls> calls_;
    std::string description_;
    int version_ = 0;
};

} // namespace kvscope::cuda
