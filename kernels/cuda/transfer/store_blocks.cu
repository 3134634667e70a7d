#include "kernels/cuda/transfer/store_blocks.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kStoreThreads = 256;

__global__ void __launch_bounds__(kStoreThreads) storeKernel(StoreBlocksArgs a) {
    letNextKernelStart();
    waitForEarlierKernels();
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(a.from) + blockIdx.y * a.fromStride);
    auto* to = reinterpret_cast<uint4*>(static_cast<char*>(a.to) + blockIdx.y * a.toStride);
    const std::size_t words = a.bytes / sizeof(uint4), step = std::size_t(gridDim.x) * blockDim.x;
    for (std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step) to[i] = from[i];
}

} // namespace

void storeBlocks(const Launch& how, const StoreBlocksArgs& args, int blocks) {
    if (args.bytes == 0 || args.heads == 0) return;
    launch(how, {dim3(unsigned(blocks), unsigned(args.heads)), dim3(kStoreThreads)}, storeKernel, "storing KV blocks",
           args);
}

} // namespace kvscope::cuda
