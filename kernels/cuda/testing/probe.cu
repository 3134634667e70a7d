#include "kernels/cuda/testing/probe.h"

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) readKernel(const uint4* data, std::size_t pieces, std::uint32_t* sink) {
    std::uint32_t sum = 0;
    const std::size_t stride = std::size_t(gridDim.x) * kThreads;
    std::size_t i = std::size_t(blockIdx.x) * kThreads + threadIdx.x;
    for (; i + 7 * stride < pieces; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int u = 0; u < 8; ++u) v[u] = loadStreaming(data + i + u * stride);
#pragma unroll
        for (int u = 0; u < 8; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    for (; i < pieces; i += stride) {
        const uint4 v = loadStreaming(data + i);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 0x12345677u) *sink = sum; // without a use of the sum the compiler would drop the loads
}

__global__ void __launch_bounds__(256) emptyKernel() {
    letNextKernelStart();
    waitForEarlierKernels();
}

} // namespace

void readProbe(const Launch& how, const void* data, std::size_t bytes, std::uint32_t* sink) {
    launch(how, {dim3(unsigned(how.multiprocessors * 4)), dim3(kThreads)}, readKernel, "reading memory",
           static_cast<const uint4*>(data), bytes / 16, sink);
}

void emptyNode(const Launch& how, int blocks) {
    launch(how, {dim3(unsigned(blocks)), dim3(256)}, emptyKernel, "starting a kernel");
}

} // namespace kvscope::cuda
