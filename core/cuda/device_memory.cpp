#include "core/cuda/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace kvscope {
namespace {

constexpr std::size_t kReserve = std::size_t(256) << 20; // left free for the libraries and the display
constexpr MemoryKind kGaps{"gaps between arrays"};
constexpr const char *kTaking = "allocating the session's memory", *kClearing = "clearing the session's memory";

std::size_t aligned(std::size_t bytes) {
    return (bytes + DeviceArena::kAlignment - 1) / DeviceArena::kAlignment * DeviceArena::kAlignment;
}

std::byte* alignedTo(std::size_t alignment, std::byte* at) {
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(at) % alignment;
    return at + (beyond > 0 ? alignment - beyond : 0);
}

} // namespace

void DeviceArena::declare(const MemoryKind& kind, MemoryTier tier, std::size_t bytes) {
    declared_.add(
        {kind.key, kind.what, tier, kind.holds, Lifetime::Session, Per::Row, std::int64_t(bytes), LayerSet::None});
}

void DeviceArena::add(void** pointer, std::size_t bytes, const MemoryKind& kind, std::size_t alignment) {
    // The driver's memory begins at a multiple of kAlignment. Where an array wants more, the gap is known after take().
    const std::size_t most = kAlignment % alignment == 0 ? bytes : bytes + alignment - 1;
    parts_.push_back({pointer, total_, alignment, most});
    total_ += aligned(most);
    declare(kind, MemoryTier::Device, bytes);
    declare(kGaps, MemoryTier::Device, aligned(most) - bytes);
}

void DeviceArena::addHost(HostPart part, const MemoryKind& kind) {
    if (part.lent != nullptr && part.lent->bytes() < part.bytes) part.lent = nullptr;
    hostParts_.push_back(part);
    declare(kind, MemoryTier::Host, part.bytes);
}

std::size_t DeviceArena::hostBytes() const {
    std::size_t bytes = 0;
    for (const HostPart& part : hostParts_)
        if (!isLent(part)) bytes += part.bytes;
    return bytes;
}

std::size_t DeviceArena::storeBytes() const {
    std::size_t bytes = 0;
    for (const HostPart& part : hostParts_)
        if (part.store && part.lent == nullptr) bytes += aligned(part.bytes);
    return bytes;
}

/// "KV slots 3.10 GiB, activations 0.41 GiB, ...": what takes most of the GPU's memory.
std::string DeviceArena::largest() const {
    constexpr std::size_t kNamed = 3;
    std::vector<const MemoryPlan::Part*> order;
    for (const MemoryPlan::Part& part : declared_.parts())
        if (part.need.tier == MemoryTier::Device) order.push_back(&part);
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < std::min(kNamed, order.size()); ++i)
        texts.push_back(fmt::format("{} {:.2f} GiB", order[i]->need.what, double(order[i]->bytes) / (1 << 30)));
    return fmt::format("{}", fmt::join(texts, ", "));
}

std::int64_t DeviceArena::room() {
    std::size_t available = 0, all = 0;
    cuda::check(cuda::deviceCalls().memoryInfo(&available, &all), "asking for the GPU's free memory");
    return std::int64_t(available) - std::int64_t(kReserve);
}

void DeviceArena::takeTogether() {
    memory_ = cuda::DeviceMemory(total_, kTaking);
    cuda::check(cuda::deviceCalls().clear(memory_.data(), total_), kClearing);
    for (const Part& part : parts_) *part.pointer = alignedTo(part.alignment, memory_.data() + part.offset);
}

void DeviceArena::takeSeparately() {
    for (const Part& part : parts_) {
        const std::size_t bytes = std::max<std::size_t>(part.most, 1);
        const cuda::DeviceMemory& memory = separate_.emplace_back(bytes, kTaking);
        cuda::check(cuda::deviceCalls().clear(memory.data(), bytes), kClearing);
        *part.pointer = alignedTo(part.alignment, memory.data());
    }
}

void DeviceArena::take() {
    if (total_ > 0) {
        std::size_t available = 0, all = 0;
        cuda::check(cuda::deviceCalls().memoryInfo(&available, &all), "asking for the GPU's free memory");
        if (total_ + kReserve > available)
            throw Error(
                ErrorKind::OutOfMemory,
                fmt::format("the session needs {:.2f} GiB of GPU memory and {:.2f} GiB of {:.2f} GiB are free ({})",
                            double(total_ + kReserve) / (1 << 30), double(available) / (1 << 30),
                            double(all) / (1 << 30), largest()),
                "use a smaller batch, context or --device-kv, or close other programs on the GPU");
        std::getenv("KVSCOPE_SEPARATE_ARRAYS") != nullptr ? takeSeparately() : takeTogether();
    }
    std::byte* store = lent_;
    for (const HostPart& part : hostParts_) {
        if (part.lent != nullptr)
            *part.pointer = part.lent->data();
        else if (isLent(part))
            *part.pointer = std::exchange(store, store + aligned(part.bytes));
        else
            *part.pointer = host_.emplace_back(part.bytes, part.what).data();
    }
}

} // namespace kvscope
