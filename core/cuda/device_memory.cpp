#include "core/cuda/device_memory.h"

#include "kernels/base/host_memory.h"

#include <algorithm>
#include <cstring>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <map>
#include <sys/mman.h>
#include <thread>

namespace kvscope {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kReserve = std::size_t(256) << 20;       // left free for the libraries and the display
constexpr std::size_t kThreadedPinning = std::size_t(1) << 30; // from here on touching pages in threads pays

} // namespace

DeviceArena::~DeviceArena() { cudaFree(base_); }

void DeviceArena::add(void** pointer, std::size_t bytes, const char* what) {
    parts_.push_back({pointer, total_, bytes, what});
    total_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void DeviceArena::take() {
    if (total_ == 0) return;
    std::size_t available = 0, all = 0;
    cuda::check(cudaMemGetInfo(&available, &all), "asking for the GPU's free memory");
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
    cuda::check(cudaMalloc(&base_, total_), "allocating the session's memory");
    cuda::check(cudaMemset(base_, 0, total_), "clearing the session's memory");
    cuda::check(cudaDeviceSynchronize(), "clearing the session's memory");
    for (const Part& part : parts_) *part.pointer = static_cast<char*>(base_) + part.offset;
}

PinnedMemory::PinnedMemory(std::size_t bytes, const char* what) : bytes_(bytes) {
    if (bytes == 0) return;
    // The system promises more than it has and ends programs that believe it.
    if (const std::size_t available = availableHostMemory(); bytes >= kThreadedPinning && bytes > available)
        throw Error(ErrorKind::OutOfMemory,
                    fmt::format("{} needs {:.2f} GiB of host memory and {:.2f} GiB are available", what,
                                double(bytes) / (1 << 30), double(available) / (1 << 30)),
                    "use a smaller batch or context, or close other programs");
    const auto refuse = [&] {
        throw Error(ErrorKind::OutOfMemory,
                    fmt::format("{} needs {:.2f} GiB of host memory that the GPU can reach, and the system refuses it",
                                what, double(bytes) / (1 << 30)),
                    "use a smaller batch or context, or raise the limit of locked memory (ulimit -l)");
    };
    if (bytes < kThreadedPinning) {
        if (cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
            cudaGetLastError();
            data_ = nullptr;
            refuse();
        }
        std::memset(data_, 0, bytes);
        return;
    }
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) refuse();
    madvise(data, bytes, MADV_HUGEPAGE);
    { // pages are handed out on first touch: many threads do it several times faster than the pinning call itself
        const std::size_t threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
        std::vector<std::jthread> team;
        for (std::size_t t = 0; t < threads; ++t)
            team.emplace_back([=] {
                const std::size_t begin = bytes / threads * t,
                                  end = t + 1 == threads ? bytes : bytes / threads * (t + 1);
                std::memset(static_cast<char*>(data) + begin, 0, end - begin);
            });
    }
    if (cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) != cudaSuccess) {
        cudaGetLastError();
        munmap(data, bytes);
        refuse();
    }
    data_ = data;
    registered_ = true;
}

PinnedMemory::~PinnedMemory() {
    if (data_ == nullptr) return;
    if (registered_) {
        cudaHostUnregister(data_);
        munmap(data_, bytes_);
    } else {
        cudaFreeHost(data_);
    }
}

} // namespace kvscope
