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

/// SparseServe's way to the host: blocks come over the link in one copy, and threads scatter them. One Scatter serves
/// all prompts of an engine.
class Scatter {
public:
    static constexpr int kThreads = 4;

    Scatter() : team_(kThreads) {}
    /// Has the threads scatter when everything that the stream has so far is done; what the stream gets later waits for
    /// them. The memory must live until then. @throws Error(Device)
    void after(cudaStream_t stream, const Scattered& what);
    /// Scatters now, and returns when all blocks are there. Any thread may call this.
    void now(const Scattered& what);

private:
    std::mutex mutex_; // streams of different prompts come at once
    cpu::ThreadTeam team_;
};

} // namespace kvscope
