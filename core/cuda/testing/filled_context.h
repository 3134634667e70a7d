// Stands in for prompts where only the steps after them are measured.
#pragma once

#include "core/cuda/cuda_engine.h"

#include <cstdint>

namespace kvscope {

/// Random keys, values and scores for `tokens` tokens of each of the engine's sequences, as if it had read them. Waits.
/// @throws Error(Device)
void fillContext(CudaEngine& engine, int tokens, std::uint64_t seed);

} // namespace kvscope
