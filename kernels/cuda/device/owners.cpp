#include "kernels/cuda/device/owners.h"

#include "base/host_memory.h"
#include "kernels/cuda/device/check.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fmt/format.h>
#include <thread>
#include <vector>

namespace kvscope::cuda {
namespace {

std::array<std::atomic<std::int64_t>, 4> handles; // by detail::Counted

struct Memory {
    std::atomic<std::int64_t> buffers = 0, bytes = 0;

    void add(std::size_t size) noexcept {
        ++buffers;
        bytes += std::int64_t(size);
    }
    void remove(std::size_t size) noexcept {
        --buffers;
        bytes -= std::int64_t(size);
    }
};
Memory onDevice, onHost;

[[noreturn]] void refuseHost(std::size_t bytes, const char* what) {
    cudaGetLastError(); // the next call would report it again
    throw Error(ErrorKind::OutOfMemory,
                fmt::format("{} needs {:.2f} GiB of host memory that the GPU can reach, and the system refuses it",
                            what, double(bytes) / (1 << 30)),
                "use a smaller batch or context, or raise the limit of locked memory (ulimit -l)");
}

/// The system hands pages out on first touch: many threads do it several times faster than the call that pins them.
void touch(char* data, std::size_t bytes) {
    const std::size_t threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
    std::vector<std::jthread> team;
    for (std::size_t t = 0; t < threads; ++t)
        team.emplace_back([=] {
            const std::size_t begin = bytes / threads * t, end = t + 1 == threads ? bytes : bytes / threads * (t + 1);
            std::memset(data + begin, 0, end - begin);
        });
}

} // namespace

void detail::count(Counted what, int change) noexcept { handles[std::size_t(what)] += change; }

Living living() {
    const auto of = [](detail::Counted what) { return handles[std::size_t(what)].load(); };
    return {of(detail::Counted::Streams), of(detail::Counted::Events),
            of(detail::Counted::Graphs),  of(detail::Counted::Executables),
            onDevice.buffers.load(),      onDevice.bytes.load(),
            onHost.buffers.load(),        onHost.bytes.load()};
}

Stream Stream::make(StreamKind kind) {
    DeviceCalls& calls = deviceCalls();
    cudaStream_t stream = nullptr;
    check(calls.createStream(&stream, kind), "opening a stream");
    return {calls, stream};
}

Event Event::make() {
    DeviceCalls& calls = deviceCalls();
    cudaEvent_t event = nullptr;
    check(calls.createEvent(&event, cudaEventDisableTiming), "making an event");
    return {calls, event};
}

Event Event::makeTimed() {
    DeviceCalls& calls = deviceCalls();
    cudaEvent_t event = nullptr;
    check(calls.createEvent(&event, cudaEventDefault), "making an event");
    return {calls, event};
}

Graph::Recording::Recording(cudaStream_t stream) : calls_(deviceCalls()), stream_(stream) {
    check(calls_.beginCapture(stream_), "recording a graph");
}

Graph::Recording::~Recording() {
    if (ended_) return;
    cudaGraph_t graph = nullptr;
    calls_.endCapture(stream_, &graph);
    if (graph != nullptr) calls_.destroyGraph(graph);
}

Graph Graph::Recording::end() {
    ended_ = true;
    cudaGraph_t graph = nullptr;
    const cudaError_t code = calls_.endCapture(stream_, &graph);
    Graph made(calls_, graph);
    check(code, "recording a graph");
    return made;
}

Executable Executable::of(const Graph& graph) {
    DeviceCalls& calls = deviceCalls();
    cudaGraphExec_t executable = nullptr;
    check(calls.instantiate(&executable, graph.get()), "preparing a graph");
    return {calls, executable};
}

DeviceMemory::DeviceMemory(std::size_t bytes, const char* what) {
    if (bytes == 0) return;
    DeviceCalls& calls = deviceCalls();
    check(calls.allocate(&data_, bytes), what);
    calls_ = &calls;
    bytes_ = bytes;
    onDevice.add(bytes_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : calls_(other.calls_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    if (this == &other) return *this;
    reset();
    calls_ = other.calls_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
}

void DeviceMemory::reset() noexcept {
    if (data_ == nullptr) return;
    calls_->release(data_);
    onDevice.remove(bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

// The object is whole once the first constructor has ended: if the second one throws, the destructor gives back what
// was taken by then.
PinnedMemory::PinnedMemory(std::size_t bytes, const char* what) : PinnedMemory() {
    if (bytes == 0) return;
    calls_ = &deviceCalls();
    bytes_ = bytes;
    if (bytes < calls_->mappedFrom())
        allocate(what);
    else
        map(what);
}

void PinnedMemory::allocate(const char* what) {
    void* data = nullptr;
    if (calls_->allocateHost(&data, bytes_) != cudaSuccess) refuseHost(bytes_, what);
    data_ = data;
    onHost.add(bytes_);
    std::memset(data_, 0, bytes_);
}

void PinnedMemory::map(const char* what) {
    // The system promises more than it has and ends programs that believe it.
    if (const std::size_t available = availableHostMemory(); bytes_ > available)
        throw Error(ErrorKind::OutOfMemory,
                    fmt::format("{} needs {:.2f} GiB of host memory and {:.2f} GiB are available", what,
                                double(bytes_) / (1 << 30), double(available) / (1 << 30)),
                    "use a smaller batch or context, or close other programs");
    data_ = calls_->mapHost(bytes_);
    if (data_ == nullptr) refuseHost(bytes_, what);
    way_ = Way::Mapped;
    onHost.add(bytes_);
    touch(static_cast<char*>(data_), bytes_);
    if (calls_->registerHost(data_, bytes_) != cudaSuccess) refuseHost(bytes_, what);
    way_ = Way::Registered;
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : calls_(other.calls_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)),
      way_(other.way_) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
    if (this == &other) return *this;
    reset();
    calls_ = other.calls_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    way_ = other.way_;
    return *this;
}

void PinnedMemory::reset() noexcept {
    if (data_ == nullptr) return;
    if (way_ == Way::Allocated) {
        calls_->releaseHost(data_);
    } else {
        if (way_ == Way::Registered) calls_->unregisterHost(data_);
        calls_->unmapHost(data_, bytes_);
    }
    onHost.remove(bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

} // namespace kvscope::cuda
