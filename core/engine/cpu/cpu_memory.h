// Declares the memory that the CPU engine takes for a session: the engine's own buffers, both KV tiers and the method's
// memory.
#pragma once

#include "core/plan/memory_plan.h"
#include "core/session/engine.h"

namespace kvscope {

/// All memory of a session but the model, the prompts and what is recorded.
MemoryPlan cpuMemory(const EngineSetup& setup);

/// @throws Error(OutOfMemory) with the numbers where more is planned than is free
void refuseTooLarge(const MemoryPlan& plan);

} // namespace kvscope
