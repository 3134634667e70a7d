// What the CPU engine takes for a session, declared: the engine's own buffers, both KV tiers and what the method asks
// for.
#pragma once

#include "core/plan/memory_plan.h"
#include "core/session/engine.h"

namespace kvscope {

/// Everything a session takes but the model, the prompts and what is recorded.
MemoryPlan cpuMemory(const EngineSetup& setup);

/// @throws Error(OutOfMemory) with the numbers where more is planned than is free
void refuseTooLarge(const MemoryPlan& plan);

} // namespace kvscope
