// Declares the memory that the engines of the CPU backend take for a session: their own buffers, both KV tiers and the
// method's memory.
#pragma once

#include "core/plan/memory_plan.h"
#include "core/session/engine.h"

#include <vector>

namespace kvscope {

struct CanvasSetup;
struct DenoiseSetup;

/// All memory of a session but the model, the prompts and what is recorded.
MemoryPlan cpuMemory(const EngineSetup& setup);
/// The same for a session that denoises blocks, and for one that denoises a canvas.
MemoryPlan cpuDenoiserMemory(const DenoiseSetup& setup);
MemoryPlan cpuCanvasMemory(const CanvasSetup& setup);

/// The buffers that every engine has: those of CpuLayerPasses and of the kernels for `rows` tokens at a time, and the
/// residual stream and the logits of `outputs` tokens.
std::vector<MemoryNeed> cpuActivations(const ModelConfig& config, const Abilities& needs, std::int64_t rows,
                                       std::int64_t outputs, int threads);

/// @throws Error(OutOfMemory) with the numbers where more is planned than is free
void refuseTooLarge(const MemoryPlan& plan);

} // namespace kvscope
