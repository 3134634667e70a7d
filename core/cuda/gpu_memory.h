// Declares the memory that a session on a GPU takes, before it takes any: the GPU's memory and the host's that the GPU
// reaches. The list is made of what each part of the engine asks the arena for, so the session takes exactly this.
#pragma once

#include "core/cuda/cuda_engine_options.h"
#include "core/plan/memory_plan.h"
#include "core/session/engine.h"
#include "kernels/cuda/device/check.h"

namespace kvscope {

/// Declares all memory of a session but the model's. Takes none; see CudaEngine::memory. launch: the GPU's, see
/// gpuLaunch (cuda_engine.h). @throws Error(Unsupported)
MemoryPlan gpuMemory(const EngineSetup& setup, const cuda::Launch& launch);

/// The options with which the engine of a session is made.
CudaEngineOptions gpuEngineOptions(const EngineSetup& setup);

} // namespace kvscope
