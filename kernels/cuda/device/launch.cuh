// Launches with the ordering every kernel of a step uses, and clusters where asked.
#pragma once

#include "kernels/cuda/device/check.h"

#include <cuda_runtime.h>
#include <utility>

namespace kvscope::cuda {

struct Grid {
    dim3 blocks, threads;
    std::size_t sharedBytes = 0;
    unsigned cluster = 1; // along x
};

template <class... Parameters, class... Arguments>
void launch(const Launch& how, const Grid& grid, void (*kernel)(Parameters...), const char* name,
            Arguments&&... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid.blocks;
    config.blockDim = grid.threads;
    config.dynamicSmemBytes = grid.sharedBytes;
    config.stream = how.stream;
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (!how.joined) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (grid.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = grid.cluster;
        attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
        ++count;
    }
    config.attrs = attributes;
    config.numAttrs = count;
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

/// Raises a kernel's dynamic shared memory limit.
template <class... Parameters> void allowShared(void (*kernel)(Parameters...), std::size_t bytes, const char* name) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), name);
}

/// For a kernel with a large ring: asks for 132 KiB of shared memory, 57 % of the 228 KiB that a multiprocessor can
/// have, and leaves the rest as cache. Without this call the driver makes room in shared memory for as many thread
/// blocks as could fit, and the projections that follow on the same multiprocessor find less cache.
template <class... Parameters> void leaveCache(void (*kernel)(Parameters...), const char* name) {
    constexpr int kSharedPercent = 57;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSharedPercent), name);
}

/// How many clusters of this size run at once on an idle GPU. They are fewer than the multiprocessors divided by the
/// cluster's size, because all thread blocks of a cluster must lie in one group of multiprocessors. 0: this GPU has no
/// clusters of this size.
template <class... Parameters> int clustersAtOnce(const Grid& grid, void (*kernel)(Parameters...), const char* name) {
    constexpr unsigned kPortable = 8; // every GPU with clusters has these
    if (grid.cluster > kPortable)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid.cluster);
    config.blockDim = grid.threads;
    config.dynamicSmemBytes = grid.sharedBytes;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = grid.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int most = 0;
    const cudaError_t code = cudaOccupancyMaxActiveClusters(&most, kernel, &config);
    if (grid.cluster <= kPortable) check(code, name);
    if (code != cudaSuccess) cudaGetLastError(); // clears the error, which the next call would report otherwise
    return code == cudaSuccess ? most : 0;
}

} // namespace kvscope::cuda
