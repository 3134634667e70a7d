// All CUDA code: owners of streams, events, graphs, device memory and host memory that the GPU reaches. An owner can be
// moved but not copied, and destroys what it holds in its destructor, which never throws. No other code makes or
// destroys these things, so the counts here are complete.
#pragma once

#include "kernels/cuda/device/device_calls.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvscope::cuda {

/// How much the owners hold. Bytes are those asked for; the driver rounds them up.
struct Living {
    std::int64_t streams = 0, events = 0, graphs = 0, executables = 0;
    std::int64_t deviceBuffers = 0, deviceBytes = 0; // on the GPU
    std::int64_t hostBuffers = 0, hostBytes = 0;     // on the host, where the GPU reaches them
    bool operator==(const Living&) const = default;
};
/// What all owners of this process hold now. Any thread may call this.
Living living();

namespace detail {

enum class Counted { Streams, Events, Graphs, Executables };
void count(Counted what, int change) noexcept;

/// A handle and the calls that destroy it.
template <class Handle, void (DeviceCalls::*destroy)(Handle) noexcept, Counted counted> class Owner {
public:
    Owner() = default;
    Owner(Owner&& other) noexcept : calls_(other.calls_), handle_(std::exchange(other.handle_, nullptr)) {}
    Owner& operator=(Owner&& other) noexcept {
        if (this == &other) return *this;
        reset();
        calls_ = other.calls_;
        handle_ = std::exchange(other.handle_, nullptr);
        return *this;
    }
    ~Owner() { reset(); }

    /// The handle, which stays the owner's; null where the owner holds nothing.
    Handle get() const { return handle_; }
    explicit operator bool() const { return handle_ != nullptr; }

protected:
    Owner(DeviceCalls& calls, Handle handle) : calls_(&calls), handle_(handle) {
        if (handle_ != nullptr) count(counted, 1);
    }

private:
    void reset() noexcept {
        if (handle_ == nullptr) return;
        (calls_->*destroy)(handle_);
        handle_ = nullptr;
        count(counted, -1);
    }

    DeviceCalls* calls_ = nullptr;
    Handle handle_ = nullptr;
};

} // namespace detail

/// The destructor waits for the work on the stream. What the kernels on the stream use must live until then.
class Stream : public detail::Owner<cudaStream_t, &DeviceCalls::destroyStream, detail::Counted::Streams> {
public:
    Stream() = default; // none
    /// @throws Error(OutOfMemory | Device)
    static Stream make(StreamKind kind = StreamKind::Plain);

private:
    Stream(DeviceCalls& calls, cudaStream_t stream) : Owner(calls, stream) {}
};

class Event : public detail::Owner<cudaEvent_t, &DeviceCalls::destroyEvent, detail::Counted::Events> {
public:
    Event() = default; // none
    /// An event that orders streams. @throws Error(OutOfMemory | Device)
    static Event make();
    /// An event that also measures when it was reached.
    static Event makeTimed();

private:
    Event(DeviceCalls& calls, cudaEvent_t event) : Owner(calls, event) {}
};

/// The work of a stream, recorded and not done.
class Graph : public detail::Owner<cudaGraph_t, &DeviceCalls::destroyGraph, detail::Counted::Graphs> {
public:
    Graph() = default; // none
    /// Records what `work` launches on `stream`. If `work` throws, the recording ends and is discarded. @throws
    /// Error(OutOfMemory | Device) and what `work` throws
    template <class Work> static Graph capture(cudaStream_t stream, Work&& work) {
        Recording recording(stream);
        std::forward<Work>(work)();
        return recording.end();
    }

private:
    Graph(DeviceCalls& calls, cudaGraph_t graph) : Owner(calls, graph) {}
    /// A recording; the destructor ends it if end() has not.
    class Recording {
    public:
        explicit Recording(cudaStream_t stream);
        ~Recording();
        Recording(const Recording&) = delete;
        Recording& operator=(const Recording&) = delete;
        Graph end();

    private:
        DeviceCalls& calls_;
        cudaStream_t stream_;
        bool ended_ = false;
    };
};

/// A graph that can be launched. The Graph from which it was made may be destroyed.
class Executable
    : public detail::Owner<cudaGraphExec_t, &DeviceCalls::destroyExecutable, detail::Counted::Executables> {
public:
    Executable() = default; // none
    /// @throws Error(OutOfMemory | Device)
    static Executable of(const Graph& graph);

private:
    Executable(DeviceCalls& calls, cudaGraphExec_t executable) : Owner(calls, executable) {}
};

/// Memory of the GPU; not cleared.
class DeviceMemory {
public:
    DeviceMemory() = default;
    /// what: for the error, e.g. "allocating the session's memory". 0 bytes: none is asked for.
    /// @throws Error(OutOfMemory | Device)
    DeviceMemory(std::size_t bytes, const char* what);
    DeviceMemory(DeviceMemory&& other) noexcept;
    DeviceMemory& operator=(DeviceMemory&& other) noexcept;
    ~DeviceMemory() { reset(); }

    std::byte* data() const { return static_cast<std::byte*>(data_); }
    template <class T> T* as() const { return static_cast<T*>(data_); }
    std::size_t bytes() const { return bytes_; }
    explicit operator bool() const { return data_ != nullptr; }

private:
    void reset() noexcept;

    DeviceCalls* calls_ = nullptr;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Host memory that the GPU reads and writes directly.
class PinnedMemory {
public:
    PinnedMemory() = default;
    /// Zeroed. what: for the error, e.g. "the KV store". 0 bytes: none is asked for.
    /// @throws Error(OutOfMemory) with the size
    PinnedMemory(std::size_t bytes, const char* what);
    PinnedMemory(PinnedMemory&& other) noexcept;
    PinnedMemory& operator=(PinnedMemory&& other) noexcept;
    ~PinnedMemory() { reset(); }

    void* data() const { return data_; }
    template <class T> T* as() const { return static_cast<T*>(data_); }
    std::size_t bytes() const { return bytes_; }

private:
    /// How the memory was taken: allocated in one call, or mapped and then registered.
    enum class Way : std::uint8_t { Allocated, Mapped, Registered };
    void allocate(const char* what);
    void map(const char* what);
    void reset() noexcept;

    DeviceCalls* calls_ = nullptr;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    Way way_ = Way::Allocated;
};

} // namespace kvscope::cuda
