// Threads of the host that put the blocks of a prompt from a buffer into the host store.
#pragma once

#include "kernels/cpu/thread_team.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>

namespace kvscope {

/// Blocks side by side in `from` that belong at `to`, once for each KV head. All of it is host memory; strides and
/// lengths are bytes.
struct Scattered {
    const char* from = nullptr;
    char* to = nullptr;
    std::size_t blockBytes = 0;
    int blocks = 0, heads = 0;
    std::size_t fromStride = 0, toStride = 0; // from one head to the next
};

/// Brings a prompt's blocks to the host as SparseServe does: one copy brings them over the link, and then threads
/// scatter them. One Scatter serves all prompts of an engine.
class Scatter {
public:
    static constexpr int kThreads = 4;

    Scatter() : team_(kThreads) {}
    /// Scatters on the threads as soon as the stream has done what was launched on it before this call; what is
    /// launched on it afterwards waits for the threads. The memory must live until then. @throws Error(Device)
    void after(cudaStream_t stream, const Scattered& what);
    /// Scatters now, and returns when all blocks are there. Any thread may call this.
    void now(const Scattered& what);

private:
    std::mutex mutex_; // streams of different prompts may scatter at once
    cpu::ThreadTeam team_;
};

} // namespace kvscope
