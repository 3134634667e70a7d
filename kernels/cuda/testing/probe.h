// Benchmarks: measures what the GPU can do at best, with which they compare.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cstddef>
#include <cstdint>

namespace kvscope::cuda {

/// Reads `bytes` (a multiple of 16) once with 16-byte loads and nothing else.
void readProbe(const Launch& launch, const void* data, std::size_t bytes, std::uint32_t* sink);
/// A kernel that does nothing but wait for the kernel before, with `blocks` thread blocks of 256 threads.
void emptyNode(const Launch& launch, int blocks);

} // namespace kvscope::cuda
