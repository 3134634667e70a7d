// Declares the memory that a session on a GPU takes, before it takes any: the GPU's memory and the host's that the GPU
// reaches. The list is made of what each part of the engine asks the arena for, so the session takes exactly this.
#pragma once

#include "core/cuda/cuda_engine_options.h"
#include "core/plan/memory_plan.h"
#include "core/session/engine.h"
#include "kernels/cuda/device/check.h"

namespace kvscope {

/// All memory of a session but the model. Takes nothing; see CudaEngine::memory. launch: as gpuLaunch (cuda_engine.h)
/// says it of the GPU. @throws Error(Unsupported)
MemoryPlan gpuMemory(const EngineSetup& setup, const cuda::Launch& launch);

/// What the engine of a session is made with.
CudaEngineOptions gpuEngineOptions(const EngineSetup& setup);

} // namespace kvscope
