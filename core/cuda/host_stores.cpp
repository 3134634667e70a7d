#include "core/cuda/host_stores.h"

#include "base/error.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace kvscope {

struct HostStores::Slab {
    explicit Slab(std::size_t bytes) : memory(bytes, "the KV stores of requests"), free{{0, bytes}} {}
    bool idle() const { return free.size() == 1 && free.begin()->second == memory.bytes(); }

    cuda::PinnedMemory memory;
    std::map<std::size_t, std::size_t> free; // [offset] bytes; no two are neighbours
};

HostStores::Part::Part(Part&& other) noexcept
    : stores_(std::exchange(other.stores_, nullptr)), slab_(other.slab_), offset_(other.offset_),
      bytes_(std::exchange(other.bytes_, 0)) {}

HostStores::Part& HostStores::Part::operator=(Part&& other) noexcept {
    if (this == &other) return *this;
    reset();
    stores_ = std::exchange(other.stores_, nullptr);
    slab_ = other.slab_, offset_ = other.offset_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
}

void* HostStores::Part::data() const { return stores_ != nullptr ? slab_->memory.as<std::byte>() + offset_ : nullptr; }

void HostStores::Part::reset() noexcept {
    if (stores_ != nullptr) std::exchange(stores_, nullptr)->giveBack(*slab_, offset_, bytes_);
    bytes_ = 0;
}

HostStores::HostStores(std::int64_t limit) : limit_(limit) {}
HostStores::~HostStores() = default;

HostStores::Part HostStores::take(std::size_t bytes) {
    if (bytes == 0) return {};
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    // The smallest free part that is large enough, so that the large ones stay whole.
    Slab* best = nullptr;
    std::map<std::size_t, std::size_t>::iterator at;
    for (const auto& slab : slabs_)
        for (auto part = slab->free.begin(); part != slab->free.end(); ++part)
            if (part->second >= bytes && (best == nullptr || part->second < at->second)) best = slab.get(), at = part;
    if (best == nullptr) best = &grow(bytes), at = best->free.begin();
    const auto [offset, room] = *at;
    best->free.erase(at);
    if (room > bytes) best->free.emplace(offset + bytes, room - bytes);
    lent_ += std::int64_t(bytes);
    return {*this, *best, offset, bytes};
}

HostStores::Slab& HostStores::grow(std::size_t bytes) {
    const std::size_t wanted =
        std::max({bytes, kSmallest, std::min(std::size_t(held_) / kAlignment * kAlignment, kLargestGrowth)});
    if (held_ + std::int64_t(wanted) > limit_) shrinkTo(limit_ - std::int64_t(bytes));
    const std::size_t size = held_ + std::int64_t(wanted) <= limit_ ? wanted : bytes;
    std::unique_ptr<Slab> made;
    try {
        made = std::make_unique<Slab>(size);
    } catch (const Error& error) {
        // The system may have room for this part alone, or without the slabs that nobody uses.
        const std::int64_t held = held_;
        shrinkTo(0);
        if (error.kind != ErrorKind::OutOfMemory || (size == bytes && held_ == held)) throw;
        made = std::make_unique<Slab>(bytes);
    }
    held_ += std::int64_t(made->memory.bytes());
    return *slabs_.emplace_back(std::move(made));
}

void HostStores::shrinkTo(std::int64_t bytes) noexcept {
    for (auto slab = slabs_.begin(); slab != slabs_.end() && held_ > bytes;) {
        if (!(*slab)->idle()) {
            ++slab;
            continue;
        }
        held_ -= std::int64_t((*slab)->memory.bytes());
        slab = slabs_.erase(slab);
    }
}

void HostStores::giveBack(Slab& slab, std::size_t offset, std::size_t bytes) noexcept {
    lent_ -= std::int64_t(bytes);
    auto next = slab.free.lower_bound(offset);
    if (next != slab.free.end() && offset + bytes == next->first) {
        bytes += next->second;
        next = slab.free.erase(next);
    }
    const auto before = next != slab.free.begin() ? std::prev(next) : slab.free.end();
    if (before != slab.free.end() && before->first + before->second == offset)
        before->second += bytes;
    else
        slab.free.emplace(offset, bytes);
    if (held_ > limit_) shrinkTo(limit_);
}

} // namespace kvscope
