// The GPU that this process uses.
#pragma once

#include "core/session/gpu_bus_id.h"

#include <cuda_runtime_api.h>

namespace kvscope {

/// The first GPU. @throws Error(Device | Unsupported) in a sentence when there is none that fits
cudaDeviceProp usableGpu();

} // namespace kvscope
