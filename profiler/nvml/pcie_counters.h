// The GPU's own count of bytes over its PCIe link, to hold against what the engine says it moved.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace kvscope {

/// Since the counters were opened. The protocol's own bytes are included: about 15 % more than what was transferred.
struct PcieBytes {
    std::int64_t received = 0; // host to device
    std::int64_t sent = 0;     // device to host
};

/// The hardware counts in 32 bits, which a full link passes every 80 ms; a thread reads often enough to see each turn.
class PcieCounters {
public:
    /// NVML is loaded at run time. @return null, with the reason, where it, the GPU or its counters are missing
    static std::unique_ptr<PcieCounters> open(const std::string& pciBusId, std::string& refusal);
    ~PcieCounters();
    PcieCounters(const PcieCounters&) = delete;
    PcieCounters& operator=(const PcieCounters&) = delete;

    /// Up to now. Any thread; well under a millisecond.
    PcieBytes total() const;

private:
    struct Impl;
    explicit PcieCounters(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
