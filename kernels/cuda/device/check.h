// CUDA error codes as KVScope errors.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cuda_runtime_api.h>

namespace kvscope::cuda {

/// @throws Error(OutOfMemory | Device) naming `what`, e.g. "copying the weights"
void check(cudaError_t code, const char* what);

/// @throws Error(Unsupported): the shared memory of a multiprocessor is too small to select from so many blocks
[[noreturn]] void refuseContext(int blocks, int blockSize);

/// How kernels are launched: all on one stream, with the dependency on the kernel before relaxed (see
/// waitForEarlierKernels) so that a node's prologue overlaps its predecessor's end.
struct Launch {
    cudaStream_t stream = nullptr;
    int multiprocessors = 0;
    bool clusters = true; // compute capability 9 and later: thread blocks may share memory, bulk copies exist
    std::size_t blockShared = 48 << 10; // bytes of shared memory that a thread block may have, if it asks for them
    /// After a fork or a join of streams: begins when everything it depends on has finished, without a relaxed start.
    bool joined = false;
};

} // namespace kvscope::cuda
