// All kernels: CUDA error codes as KVScope errors, and how kernels are launched.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cuda_runtime_api.h>

namespace kvscope::cuda {

/// @throws Error(OutOfMemory | Device) naming `what`, e.g. "copying the weights"
void check(cudaError_t code, const char* what);

/// @throws Error(Unsupported): the shared memory of a multiprocessor is too small to select from so many blocks
[[noreturn]] void refuseContext(int blocks, int blockSize);

/// How kernels are launched: on this stream, with early start (see waitForEarlierKernels), so that the beginning of a
/// kernel overlaps the end of the kernel before.
struct Launch {
    cudaStream_t stream = nullptr;
    int multiprocessors = 0;
    bool clusters = true; // compute capability 9 and later: thread blocks may share memory, bulk copies exist
    std::size_t blockShared = 48 << 10; // bytes of shared memory that a thread block may have, if it asks for them
    /// For a kernel after a fork or a join of streams: the kernel begins when everything it depends on has finished,
    /// without early start.
    bool joined = false;
};

} // namespace kvscope::cuda
