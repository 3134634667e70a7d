// All kernels: for which GPU generations this program holds machine code.
#pragma once

#include <string>

namespace kvscope::cuda {

/// The generations that the CUDA kernels were compiled for, as CMake names them: "80-real, 90a-real".
std::string compiledGenerations();

/// Whether the GPU in use can run the kernels: the program holds code for its generation, or PTX that its driver
/// compiles.
bool holdsCodeForThisGpu();

} // namespace kvscope::cuda
