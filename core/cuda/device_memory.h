// The memory of a session on a GPU: every part of the engine declares what it needs and says where the pointer goes,
// the sum is compared with what is free, and all of it is taken at once. Nothing is taken later.
#pragma once

#include "base/elements.h"
#include "core/plan/memory_plan.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

using cuda::PinnedMemory;

/// Collects the needs of many arrays and then takes the memory of all of them at once, so that a session either fits or
/// is refused with the numbers before anything is allocated. An array is declared in one place, which also receives its
/// pointer: what is declared and what is taken cannot differ.
///
/// With KVSCOPE_SEPARATE_ARRAYS set, every array on the GPU is an allocation of its own, so that compute-sanitizer
/// finds what reads or writes behind its end. For tests: it takes more memory than is declared.
class DeviceArena {
public:
    DeviceArena() = default;
    DeviceArena(const DeviceArena&) = delete;
    DeviceArena& operator=(const DeviceArena&) = delete;

    static constexpr std::size_t kAlignment = 256;

    /// After take(), `pointer` holds so many zeroed elements on the GPU. `kind` names the biggest consumers in an
    /// error. alignment: the address is a multiple of so many bytes
    template <class T>
    void plan(T*& pointer, Elements count, const MemoryKind& kind, std::size_t alignment = kAlignment) {
        add(reinterpret_cast<void**>(&pointer), count * sizeof(T), kind, alignment);
    }
    /// After take(), `pointer` holds so many zeroed elements in host memory that the GPU reaches.
    template <class T> void planHost(T*& pointer, Elements count, const MemoryKind& kind) {
        addHost({reinterpret_cast<void**>(&pointer), count * sizeof(T), kind.what, nullptr, false}, kind);
    }
    /// The same for a store of keys and values. lent: memory that take() uses in place of memory of this arena's own,
    /// if it is large enough; or null. Lent memory is not cleared, because every part of a store is written before it
    /// is read.
    template <class T>
    void planStore(T*& pointer, Elements count, const MemoryKind& kind, const PinnedMemory* lent = nullptr) {
        addHost({reinterpret_cast<void**>(&pointer), count * sizeof(T), kind.what, lent, true}, kind);
    }
    /// Bytes of the stores for which nothing has been lent.
    std::size_t storeBytes() const;
    /// take() puts these stores into `memory`, storeBytes() bytes or more, in place of memory of this arena's own.
    void lend(void* memory) { lent_ = static_cast<std::byte*>(memory); }
    /// @throws Error(OutOfMemory) listing what needs how much
    void take();
    /// Bytes of the GPU's memory that arenas can take now. @throws Error(Device)
    static std::int64_t room();

    /// Everything that was declared on the GPU and on the host, including memory that was lent.
    const MemoryPlan& declared() const { return declared_; }
    /// Bytes of the GPU's memory, with the gaps that keep arrays aligned.
    std::size_t bytes() const { return total_; }
    /// Bytes of host memory that take() takes itself.
    std::size_t hostBytes() const;

private:
    struct Part {
        void** pointer;
        std::size_t offset, alignment;
        std::size_t most; // bytes, with the gap that the alignment may need
    };
    struct HostPart {
        void** pointer;
        std::size_t bytes;
        const char* what;
        const PinnedMemory* lent; // null: the arena takes memory of its own, or what lend() was given
        bool store;
    };
    void add(void** pointer, std::size_t bytes, const MemoryKind& kind, std::size_t alignment);
    void addHost(HostPart part, const MemoryKind& kind);
    bool isLent(const HostPart& part) const { return part.lent != nullptr || (part.store && lent_ != nullptr); }
    void declare(const MemoryKind& kind, MemoryTier tier, std::size_t bytes);
    std::string largest() const;
    void takeTogether();
    void takeSeparately();

    MemoryPlan declared_;
    std::vector<Part> parts_;
    std::vector<HostPart> hostParts_;
    std::size_t total_ = 0;
    cuda::DeviceMemory memory_;
    std::vector<cuda::DeviceMemory> separate_;
    std::vector<PinnedMemory> host_;
    std::byte* lent_ = nullptr; // for the stores
};

} // namespace kvscope
