// Shared memory for kernels that need more of it for longer contexts.
#pragma once

#include "kernels/cuda/device/launch.cuh"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

namespace kvscope::cuda {

/// Bytes of dynamic shared memory that a launch may ask for, beside what the kernel declares.
template <class... Parameters> std::size_t sharedRoom(const Launch& how, void (*kernel)(Parameters...)) {
    cudaFuncAttributes now = {};
    check(cudaFuncGetAttributes(&now, kernel), "asking for a kernel's shared memory");
    return how.blockShared - std::min(how.blockShared, now.sharedSizeBytes);
}

/// Raises a kernel's limit of dynamic shared memory to what this launch needs, not to the most that any launch might
/// need, which GPUs before Hopper do not have. The limit is never lowered: launches that a step's graph holds already
/// need theirs.
template <class... Parameters> void raiseShared(void (*kernel)(Parameters...), std::size_t bytes, const char* name) {
    cudaFuncAttributes now = {};
    check(cudaFuncGetAttributes(&now, kernel), name);
    if (bytes > std::size_t(std::max(0, now.maxDynamicSharedSizeBytes))) allowShared(kernel, bytes, name);
}

/// clustersAtOnce after raiseShared for the grid. Answers are kept: the driver is asked once for each GPU, kernel,
/// cluster size and size of shared memory.
template <class... Parameters>
int knownClustersAtOnce(const Grid& grid, void (*kernel)(Parameters...), const char* name) {
    using Question = std::tuple<int, void (*)(Parameters...), unsigned, std::size_t>;
    static std::mutex guard;
    static std::map<Question, int> answers;
    int device = 0;
    check(cudaGetDevice(&device), name);
    const std::scoped_lock lock(guard);
    const Question question{device, kernel, grid.cluster, grid.sharedBytes};
    if (const auto known = answers.find(question); known != answers.end()) return known->second;
    raiseShared(kernel, grid.sharedBytes, name);
    return answers[question] = clustersAtOnce(grid, kernel, name);
}

} // namespace kvscope::cuda
