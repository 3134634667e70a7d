// Device and pinned memory: planned first, checked against what is free, then taken in one piece.
#pragma once

#include "kernels/cuda/check.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// Asks for the memory of several arrays, then takes all of it at once, so that a session either fits or is refused
/// with the numbers before anything was allocated.
class DeviceArena {
public:
    DeviceArena() = default;
    ~DeviceArena();
    DeviceArena(const DeviceArena&) = delete;
    DeviceArena& operator=(const DeviceArena&) = delete;

    /// After take(), `pointer` holds `count` zeroed elements. `what` names the biggest consumers in an error.
    template <class T> void plan(T*& pointer, std::size_t count, const char* what) {
        add(reinterpret_cast<void**>(&pointer), count * sizeof(T), what);
    }
    /// @throws Error(OutOfMemory) listing what needs how much
    void take();
    std::size_t bytes() const { return total_; }

private:
    struct Part {
        void** pointer;
        std::size_t offset, bytes;
        const char* what;
    };
    void add(void** pointer, std::size_t bytes, const char* what);
    std::vector<Part> parts_;
    std::size_t total_ = 0;
    void* base_ = nullptr;
};

/// Host memory that the GPU reads and writes directly.
class PinnedMemory {
public:
    PinnedMemory() = default;
    /// Zeroed. @throws Error(OutOfMemory) with the size
    explicit PinnedMemory(std::size_t bytes, const char* what);
    ~PinnedMemory();
    PinnedMemory(PinnedMemory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), registered_(other.registered_) {}
    PinnedMemory& operator=(PinnedMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(registered_, other.registered_);
        return *this;
    }
    void* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
    bool registered_ = false;
};

} // namespace kvscope
