// The link between host memory and the device tier. On the CPU backend its time is modelled: bytes / bandwidth +
// latency.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope {

struct Link {
    std::string name = "pcie5";
    double gigabytesPerSecond = 55.5; // GB = 1e9 bytes
    double latencyUs = 10;            // per transfer: one batch of blocks of one layer

    std::int64_t transferNs(std::int64_t bytes) const {
        return bytes == 0 ? 0 : std::int64_t(latencyUs * 1e3 + double(bytes) / gigabytesPerSecond);
    }
    std::string describe() const; // "pcie5, 55.5 GB/s, 10 us per transfer (modelled)"
    /// "pcie4", "pcie5" or a bandwidth in GB/s. @throws Error(BadInput)
    static Link parse(std::string_view text);
};

} // namespace kvscope
