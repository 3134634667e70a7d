// Copies a checkpoint's matrices to the GPU: quantised blocks in the order in which the kernels read them, all others
// as bf16.
#pragma once

#include "core/model/layer_weights.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/linear/linear.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

namespace kvscope {

/// The format of `w` on the GPU: quantised weights keep theirs, all others are bf16.
DType deviceType(const WeightMatrix& w);
/// The format of two matrices that are interleaved on the GPU: their own where both have the same, else bf16.
DType deviceType(const WeightMatrix& a, const WeightMatrix& b);

/// Copies matrices through staging memory of a fixed size. The destructor waits until everything has arrived.
class DeviceUpload {
public:
    /// @throws Error(OutOfMemory)
    DeviceUpload();
    ~DeviceUpload();
    DeviceUpload(const DeviceUpload&) = delete;
    DeviceUpload& operator=(const DeviceUpload&) = delete;

    /// Copies `from` to the rows of `to` from `firstRow` on. firstRow: a multiple of 16 where `to` is packed.
    void rows(const cuda::DeviceMatrix& to, const WeightMatrix& from, int firstRow = 0);
    /// Copies gate and up interleaved, in the order in which the kernels read them.
    void gated(const cuda::DeviceMatrix& to, const WeightMatrix& gate, const WeightMatrix& up);
    /// Copies `from` as float32.
    void asFloats(const float* to, const WeightMatrix& from);
    void floats(const float* to, const std::vector<float>& from);

private:
    const void* rowsAs(const WeightMatrix& w, int first, int count, DType type);
    void pack(const cuda::DeviceMatrix& to, int firstTile, const WeightMatrix& low, const WeightMatrix* high);

    cuda::Launch launch_;
    cuda::DeviceMemory staging_[2];
    std::vector<std::uint16_t> halves_;
    std::vector<float> row_;
};

} // namespace kvscope
