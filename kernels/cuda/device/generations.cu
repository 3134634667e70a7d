#include "kernels/cuda/device/generations.h"

#include <cuda_runtime.h>

namespace kvscope::cuda {
namespace {

// All kernels are compiled for the same generations, so one that does nothing stands for all of them. Those of
// hopper_*.cu are compiled for sm_90a alone, and whoever launches them asks whether this GPU has code for them
// (hopperPrefillFits).
__global__ void doNothing() {}

} // namespace

std::string compiledGenerations() { return KVSCOPE_CUDA_GENERATIONS; }

bool holdsCodeForThisGpu() {
    cudaFuncAttributes attributes{};
    const cudaError_t code = cudaFuncGetAttributes(&attributes, doNothing);
    if (code != cudaSuccess) cudaGetLastError(); // the refusal is answered here and must not be reported again
    return code == cudaSuccess;
}

} // namespace kvscope::cuda
