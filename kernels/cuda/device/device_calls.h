// All CUDA code: the calls that make and destroy streams, events, graphs and memory. A test can install other calls,
// which count, fail on demand and need no GPU.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

namespace kvscope::cuda {

enum class StreamKind {
    Plain,   // does not wait for the default stream
    Urgent,  // the same, and its kernels have the highest priority
    Blocking // waits for what the default stream does, and the default stream waits for it
};

/// Calls that make something return an error code; calls that destroy something cannot fail. The functions of this
/// class call the CUDA runtime and the operating system.
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
    /// Host memory of whole pages, which the system provides at the first touch; null: refused.
    virtual void* mapHost(std::size_t bytes);
    virtual void unmapHost(void* memory, std::size_t bytes) noexcept;
    /// Makes memory of mapHost reachable for the GPU.
    virtual cudaError_t registerHost(void* memory, std::size_t bytes);
    virtual void unregisterHost(void* memory) noexcept;
    /// PinnedMemory of this many bytes or more is mapped, touched by several threads and registered; smaller memory is
    /// allocated in one call.
    virtual std::size_t mappedFrom() const { return std::size_t(1) << 30; }
    /// Free and total bytes of the GPU's memory.
    virtual cudaError_t memoryInfo(std::size_t* free, std::size_t* total);
    /// Writes zeros to memory of allocate, and waits until they are written.
    virtual cudaError_t clear(void* memory, std::size_t bytes);
};

/// The calls that owners made from now on use. Every owner destroys through the calls that made it.
DeviceCalls& deviceCalls();

/// Installs other calls until it is destroyed, for tests. There may be only one at a time, and no other thread may make
/// owners in that time.
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
