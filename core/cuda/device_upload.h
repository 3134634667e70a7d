// A checkpoint's matrices on their way to the GPU: quantised blocks in the kernels' order, the rest as bf16.
#pragma once

#include "core/model/layer_weights.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/linear/linear.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

namespace kvscope {

/// How `w` lies on the GPU: quantised weights keep their format, all others are bf16.
DType deviceType(const WeightMatrix& w);
/// The format of matrices that lie interleaved: theirs where they agree, else bf16.
DType deviceType(const WeightMatrix& a, const WeightMatrix& b);

/// Copies matrices; its staging memory is bounded whatever their size. Everything has arrived when it is destroyed.
class DeviceUpload {
public:
    /// @throws Error(OutOfMemory)
    DeviceUpload();
    ~DeviceUpload();
    DeviceUpload(const DeviceUpload&) = delete;
    DeviceUpload& operator=(const DeviceUpload&) = delete;

    /// `from` becomes the rows of `to` from `firstRow` on (packed: a multiple of 16).
    void rows(const cuda::DeviceMatrix& to, const WeightMatrix& from, int firstRow = 0);
    /// Gate and up, interleaved as the kernels want them.
    void gated(const cuda::DeviceMatrix& to, const WeightMatrix& gate, const WeightMatrix& up);
    /// As float32.
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
