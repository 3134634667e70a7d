// The calls that make and destroy what a GPU lends. A test installs others, which count, fail on demand and need no
// GPU.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

namespace kvscope::cuda {

enum class StreamKind {
    Plain,   // does not wait for the default stream
    Urgent,  // likewise, and its kernels go first
    Blocking // waits for what the default stream does, and the default stream waits for it
};

/// What makes something returns an error code; what destroys something cannot fail. The functions here are the CUDA
/// runtime's and the system's.
class DeviceCalls {
public:
    virtual ~DeviceCalls() = default;
    virtual cudaError_t createStream(cudaStream_t* stream, StreamKind kind);
    /// Waits for the stream first.
    virtual void destroyStream(cudaStream_t stream) noexcept;
    /// flags: of cudaEventCreateWithFlags.
    virtual cudaError_t createEvent(cudaEvent_t* event, unsigned flags);
    virtual void destroyEvent(cudaEvent_t event) noexcept;
    virtual cudaError_t beginCapture(cudaStream_t stream);
    virtual cudaError_t endCapture(cudaStream_t stream, cudaGraph_t* graph);
    virtual void destroyGraph(cudaGraph_t graph) noexcept;
    virtual cudaError_t instantiate(cudaGraphExec_t* executable, cudaGraph_t graph);
    virtual void destroyExecutable(cudaGraphExec_t executable) noexcept;
    virtual cudaError_t allocate(void** memory, std::size_t bytes);
    virtual void release(void* memory) noexcept;
    /// Host memory that the GPU can reach.
    virtual cudaError_t allocateHost(void** memory, std::size_t bytes);
    virtual void releaseHost(void* memory) noexcept;
    /// Host memory of whole pages, as yet without contents; null: refused.
    virtual void* mapHost(std::size_t bytes);
    virtual void unmapHost(void* memory, std::size_t bytes) noexcept;
    /// Lets the GPU reach memory of mapHost.
    virtual cudaError_t registerHost(void* memory, std::size_t bytes);
    virtual void unregisterHost(void* memory) noexcept;
    /// Host memory of so many bytes and more is mapped, touched by several threads and registered.
    virtual std::size_t mappedFrom() const { return std::size_t(1) << 30; }
    /// Of the GPU's memory.
    virtual cudaError_t memoryInfo(std::size_t* free, std::size_t* total);
    /// Writes zeros to memory of allocate, and waits for them.
    virtual cudaError_t clear(void* memory, std::size_t bytes);
};

/// Those that owners made from here on use; every owner destroys through the ones that made it.
DeviceCalls& deviceCalls();

/// Installs calls while it lives, for tests. One at a time, and no other thread may make owners meanwhile.
class ScopedDeviceCalls {
public:
    explicit ScopedDeviceCalls(DeviceCalls& calls);
    ~ScopedDeviceCalls();
    ScopedDeviceCalls(const ScopedDeviceCalls&) = delete;
    ScopedDeviceCalls& operator=(const ScopedDeviceCalls&) = delete;

private:
    DeviceCalls& before_;
};

} // namespace kvscope::cuda
