// Copies and clears arrays of a GPU in a stream's order, counted in elements.
#pragma once

#include "base/elements.h"
#include "kernels/cuda/device/check.h"

#include <cuda_runtime_api.h>

namespace kvscope {

/// what: what the caller is doing, for the error, as cuda::check has it. @throws Error(Device)
template <class T>
void copyOnStream(T* to, const T* from, Elements count, cudaMemcpyKind kind, cudaStream_t stream, const char* what) {
    cuda::check(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream), what);
}

/// Sets all bytes of the elements to 0. @throws Error(Device)
template <class T> void clearOnStream(T* at, Elements count, cudaStream_t stream, const char* what) {
    cuda::check(cudaMemsetAsync(at, 0, count * sizeof(T), stream), what);
}

} // namespace kvscope
