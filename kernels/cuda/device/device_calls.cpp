#include "kernels/cuda/device/device_calls.h"

#include <sys/mman.h>

namespace kvscope::cuda {
namespace {

DeviceCalls& runtime() {
    static auto* const calls = new DeviceCalls; // never destroyed: some owners live until the program ends
    return *calls;
}

DeviceCalls* installed = nullptr;

} // namespace

DeviceCalls& deviceCalls() { return installed != nullptr ? *installed : runtime(); }

ScopedDeviceCalls::ScopedDeviceCalls(DeviceCalls& calls) : before_(deviceCalls()) { installed = &calls; }
ScopedDeviceCalls::~ScopedDeviceCalls() { installed = &before_; }

cudaError_t DeviceCalls::createStream(cudaStream_t* stream, StreamKind kind) {
    if (kind == StreamKind::Blocking) return cudaStreamCreate(stream);
    if (kind == StreamKind::Plain) return cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    int lowest = 0, highest = 0;
    const cudaError_t code = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    return code != cudaSuccess ? code : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest);
}

void DeviceCalls::destroyStream(cudaStream_t stream) noexcept {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}

cudaError_t DeviceCalls::createEvent(cudaEvent_t* event, unsigned flags) {
    return cudaEventCreateWithFlags(event, flags);
}
void DeviceCalls::destroyEvent(cudaEvent_t event) noexcept { cudaEventDestroy(event); }

cudaError_t DeviceCalls::beginCapture(cudaStream_t stream) {
    return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}
cudaError_t DeviceCalls::endCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return cudaStreamEndCapture(stream, graph);
}
void DeviceCalls::destroyGraph(cudaGraph_t graph) noexcept { cudaGraphDestroy(graph); }

cudaError_t DeviceCalls::instantiate(cudaGraphExec_t* executable, cudaGraph_t graph) {
    return cudaGraphInstantiate(executable, graph, 0);
}
void DeviceCalls::destroyExecutable(cudaGraphExec_t executable) noexcept { cudaGraphExecDestroy(executable); }

cudaError_t DeviceCalls::allocate(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
void DeviceCalls::release(void* memory) noexcept { cudaFree(memory); }

cudaError_t DeviceCalls::allocateHost(void** memory, std::size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}
void DeviceCalls::releaseHost(void* memory) noexcept { cudaFreeHost(memory); }

void* DeviceCalls::mapHost(std::size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}
void DeviceCalls::unmapHost(void* memory, std::size_t bytes) noexcept { munmap(memory, bytes); }

cudaError_t DeviceCalls::registerHost(void* memory, std::size_t bytes) {
    return cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
}
void DeviceCalls::unregisterHost(void* memory) noexcept { cudaHostUnregister(memory); }

cudaError_t DeviceCalls::memoryInfo(std::size_t* free, std::size_t* total) { return cudaMemGetInfo(free, total); }

cudaError_t DeviceCalls::clear(void* memory, std::size_t bytes) {
    const cudaError_t code = cudaMemset(memory, 0, bytes);
    return code != cudaSuccess ? code : cudaDeviceSynchronize();
}

} // namespace kvscope::cuda
