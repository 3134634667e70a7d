// The link between host memory and the device tier. On the CPU backend the time of a transfer is modelled as
// latency + bytes / bandwidth.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope {

struct Link {
    std::string name = "pcie5";
    double gigabytesPerSecond = 55.5; // GB = 1e9 bytes
    double latencyUs = 10;            // of every transfer, which moves the blocks of one layer in one step

    std::int64_t transferNs(std::int64_t bytes) const {
        return bytes == 0 ? 0 : std::int64_t(latencyUs * 1e3 + double(bytes) / gigabytesPerSecond);
    }
    std::string describe() const; // "pcie5, 55.5 GB/s, 10 us per transfer (modelled)"
    /// "pcie4", "pcie5" or a bandwidth in GB/s. @throws Error(BadInput)
    static Link parse(std::string_view text);
};

} // namespace kvscope
