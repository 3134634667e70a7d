// The GPU's own count of the bytes on its PCIe link, to compare with the bytes that the engine says it has moved.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace kvscope {

/// Bytes since the counters were opened. They include the protocol's own bytes, about 15 % of what was transferred.
struct PcieBytes {
    std::int64_t received = 0; // host to device
    std::int64_t sent = 0;     // device to host
};

/// The hardware's counters have 32 bits, and a link at full speed makes them begin again every 80 ms. A thread reads
/// them often enough to notice each time.
class PcieCounters {
public:
    /// Loads NVML at run time. @return null, with the reason in `refusal`, where NVML, the GPU or its counters are
    /// missing
    static std::unique_ptr<PcieCounters> open(const std::string& pciBusId, std::string& refusal);
    ~PcieCounters();
    PcieCounters(const PcieCounters&) = delete;
    PcieCounters& operator=(const PcieCounters&) = delete;

    /// Bytes up to now. Any thread may call this; it takes well under a millisecond.
    PcieBytes total() const;

private:
    struct Impl;
    explicit PcieCounters(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
