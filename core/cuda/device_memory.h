// A session's device memory: the parts of the engine plan what they need, the sum is compared with what is free, and
// all of it is taken in one piece.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"

#include <cstddef>
#include <string>
#include <vector>

namespace kvscope {

using cuda::PinnedMemory;

/// Collects the needs of many arrays and then takes the memory of all of them at once, so that a session either fits or
/// is refused with the numbers before anything is allocated.
class DeviceArena {
public:
    DeviceArena() = default;
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
    cuda::DeviceMemory memory_;
};

} // namespace kvscope
