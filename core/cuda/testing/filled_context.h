// Fills the cache without reading prompts, for benchmarks that measure only the steps.
#pragma once

#include "core/cuda/cuda_engine.h"
#include "core/cuda/cuda_row.h"

#include <cstdint>

namespace kvscope {

/// Fills the cache with random keys, values and eviction scores for `tokens` tokens of each sequence, as if the engine
/// had read them. Waits. @throws Error(Device)
void fillContext(CudaEngine& engine, int tokens, std::uint64_t seed);
/// Fills the context of one row, which then decodes.
void fillContext(CudaRow& row, int tokens, std::uint64_t seed);

} // namespace kvscope
