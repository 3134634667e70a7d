#include "core/cuda/device_memory.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace kvscope {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kReserve = std::size_t(256) << 20; // left free for the libraries and the display

} // namespace

void DeviceArena::add(void** pointer, std::size_t bytes, const char* what) {
    parts_.push_back({pointer, total_, bytes, what});
    total_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void DeviceArena::take() {
    if (total_ == 0) return;
    std::size_t available = 0, all = 0;
    cuda::check(cuda::deviceCalls().memoryInfo(&available, &all), "asking for the GPU's free memory");
    if (total_ + kReserve > available) {
        std::map<std::string, std::size_t> sizes;
        for (const Part& part : parts_) sizes[part.what] += part.bytes;
        std::vector<std::pair<std::size_t, std::string>> largest;
        for (const auto& [name, bytes] : sizes) largest.emplace_back(bytes, name);
        std::sort(largest.rbegin(), largest.rend());
        std::string list;
        for (std::size_t i = 0; i < std::min<std::size_t>(3, largest.size()); ++i)
            list +=
                fmt::format("{}{} {:.2f} GiB", i ? ", " : "", largest[i].second, double(largest[i].first) / (1 << 30));
        throw Error(ErrorKind::OutOfMemory,
                    fmt::format("the session needs {:.2f} GiB of GPU memory and {:.2f} GiB of {:.2f} GiB are free ({})",
                                double(total_ + kReserve) / (1 << 30), double(available) / (1 << 30),
                                double(all) / (1 << 30), list),
                    "use a smaller batch, context or --device-kv, or close other programs on the GPU");
    }
    memory_ = cuda::DeviceMemory(total_, "allocating the session's memory");
    cuda::check(cuda::deviceCalls().clear(memory_.data(), total_), "clearing the session's memory");
    for (const Part& part : parts_) *part.pointer = memory_.data() + part.offset;
}

} // namespace kvscope
