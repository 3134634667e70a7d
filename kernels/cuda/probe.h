// What the GPU can do at best: floors for the benchmarks.
#pragma once

#include "kernels/cuda/check.h"

#include <cstddef>
#include <cstdint>

namespace kvscope::cuda {

/// Reads `bytes` (a multiple of 16) once with 16-byte loads and nothing else.
void readProbe(const Launch& launch, const void* data, std::size_t bytes, std::uint32_t* sink);
/// A kernel that only takes part in the ordering: `blocks` blocks of 256 threads.
void emptyNode(const Launch& launch, int blocks);

} // namespace kvscope::cuda
