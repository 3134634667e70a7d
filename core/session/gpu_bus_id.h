#pragma once

#include <string>

namespace kvscope {

/// Where the GPU in use sits, e.g. "0000:01:00.0"; other libraries know it by that. @throws Error without one
std::string gpuBusId();
/// CUDA's number of the GPU in use; profilers know it by that. @throws Error without one
int gpuNumber();

} // namespace kvscope
