// The GPU that this process uses.
#pragma once

#include "core/session/gpu_bus_id.h"

#include <cuda_runtime_api.h>

namespace kvscope {

/// Properties of the first GPU. @throws Error(Device | Unsupported) if there is no GPU or KVScope cannot use it
cudaDeviceProp usableGpu();

} // namespace kvscope
