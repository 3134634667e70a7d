// Host memory for the KV stores of rows that come and go. To take memory that a GPU reaches costs about a millisecond a
// MiB and holds up all rows, so memory that a row gives back is kept for the rows after it.
#pragma once

#include "kernels/cuda/device/owners.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvscope {

/// Takes memory in slabs and lends parts of them. Used from one thread. What is lent is not cleared: it holds what its
/// last user wrote.
class HostStores {
    struct Slab;

public:
    static constexpr std::size_t kAlignment = 4096;                       // bytes, of every part
    static constexpr std::size_t kSmallest = std::size_t(16) << 20;       // bytes of a slab
    static constexpr std::size_t kLargestGrowth = std::size_t(256) << 20; // bytes of a slab that no part needs whole

    /// A part that is lent. Gives itself back when it is destroyed, which must not be after its HostStores.
    class Part {
    public:
        Part() = default; // none
        Part(Part&& other) noexcept;
        Part& operator=(Part&& other) noexcept;
        ~Part() { reset(); }
        void* data() const;
        std::size_t bytes() const { return bytes_; }

    private:
        friend class HostStores;
        Part(HostStores& stores, Slab& slab, std::size_t offset, std::size_t bytes)
            : stores_(&stores), slab_(&slab), offset_(offset), bytes_(bytes) {}
        void reset() noexcept;

        HostStores* stores_ = nullptr;
        Slab* slab_ = nullptr;
        std::size_t offset_ = 0, bytes_ = 0;
    };

    /// limit: bytes of all slabs. Where no free part is large enough for take(), slabs that nobody uses are given up to
    /// make room for a new one. If that is not enough, the new slab exceeds the limit, and slabs are given up as soon
    /// as nobody uses them.
    explicit HostStores(std::int64_t limit);
    ~HostStores();
    HostStores(const HostStores&) = delete;
    HostStores& operator=(const HostStores&) = delete;

    /// 0 bytes: none. @throws Error(OutOfMemory)
    Part take(std::size_t bytes);
    /// Bytes of all slabs.
    std::int64_t held() const { return held_; }
    /// Bytes of all parts that are lent.
    std::int64_t lent() const { return lent_; }

private:
    void giveBack(Slab& slab, std::size_t offset, std::size_t bytes) noexcept;
    Slab& grow(std::size_t bytes);
    /// Gives up slabs that nobody uses until so many bytes are held, or no such slab is left.
    void shrinkTo(std::int64_t bytes) noexcept;

    const std::int64_t limit_;
    std::int64_t held_ = 0, lent_ = 0;
    std::vector<std::unique_ptr<Slab>> slabs_;
};

} // namespace kvscope
