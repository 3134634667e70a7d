// Linear layers on the GPU: bf16 weights, float accumulation. One input reads the weights with plain multiply-adds; a
// few share them through tensor cores; many go to cuBLASLt where it is installed, else to our own tiles.
#pragma once

#include "kernels/cuda/check.h"

#include <cstdint>
#include <cuda_bf16.h>
#include <memory>

namespace kvscope::cuda {

/// Device memory, [rows = outputs, cols = inputs], row-major; cols a multiple of 32; gated: rows of 16.
struct DeviceMatrix {
    const __nv_bfloat16* data = nullptr;
    int rows = 0, cols = 0;
};

/// What happens to W x: exactly one of `y` and `hidden` is set.
struct LinearOutput {
    float* y = nullptr; // [n, rows], rows `stride` floats apart
    int stride = 0;
    bool accumulate = false;         // y += instead of y =
    const float* bias = nullptr;     // [rows]
    __nv_bfloat16* hidden = nullptr; // [n, rows/2]: silu(gate) * up; weights interleaved by interleavedRow
};

/// Writes the GPU's timer when everything before has finished.
void stampNow(const Launch& launch, std::uint64_t* mark);

/// Where output `row` of the gate (or of up, when `up`) lies in the interleaved gate-and-up matrix: tiles of 16 rows, 8
/// of the gate and the same 8 of up, so that one thread of a tensor-core tile holds both.
constexpr int interleavedRow(int row, bool up) { return row / 8 * 16 + row % 8 + (up ? 8 : 0); }

/// RMSNorm's weight [cols], or null for a plain input.
struct Norm {
    const float* weight = nullptr;
    float eps = 0;
};

/// The matrix-multiply library, loaded at run time; absent is fine.
class MatrixLibrary;

/// Work space of the linear layers of one stream.
class Linear {
public:
    /// maxInputs, maxCols: the largest n and cols that will come. @throws Error(OutOfMemory)
    Linear(const Launch& launch, int maxInputs, int maxCols, bool useLibrary = true);
    ~Linear();
    Linear(const Linear&) = delete;
    Linear& operator=(const Linear&) = delete;

    /// W norm(x): x float [n, cols], rows `xStride` apart. mark: see stamp().
    void run(const DeviceMatrix& w, const float* x, int xStride, int n, const Norm& norm, const LinearOutput& out,
             std::uint64_t* mark = nullptr);
    /// W x: x bf16 [n, cols], contiguous.
    void run(const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out,
             std::uint64_t* mark = nullptr);

    /// "cuBLASLt 13.1" or "own kernels".
    const char* description() const;
    /// Prepares everything that must not happen while a graph is captured.
    void prepare(const DeviceMatrix& w, int n, const LinearOutput& out);

private:
    void many(const DeviceMatrix& w, const __nv_bfloat16* x, int n, const LinearOutput& out, std::uint64_t* mark);
    Launch launch_;
    __nv_bfloat16* normed_ = nullptr; // [maxInputs, maxCols]
    __nv_bfloat16* gated_ = nullptr;  // [maxInputs, rows] before silu, grown by prepare
    std::size_t gatedSize_ = 0;
    std::unique_ptr<MatrixLibrary> library_;
};

} // namespace kvscope::cuda
