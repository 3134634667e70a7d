#pragma once

#include <string>

namespace kvscope {

/// The PCI address of the GPU in use, e.g. "0000:01:00.0", by which other libraries find the GPU. @throws Error without
/// a GPU
std::string gpuBusId();
/// CUDA's number of the GPU in use, by which profilers find the GPU. @throws Error without a GPU
int gpuNumber();

} // namespace kvscope
