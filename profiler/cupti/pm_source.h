// What PM sampling delivers: sums of the GPU's hardware counters over short intervals that follow each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

constexpr std::size_t kMostPmMetrics = 8;

/// One interval of the hardware's own clock; the values are in the order of the metrics that were asked for.
struct PmSample {
    std::int64_t startNs = 0, endNs = 0; // of the steady clock
    std::array<double, kMostPmMetrics> values{};
};

/// Where samples come from. Used by one thread at a time.
class PmSource {
public:
    virtual ~PmSource() = default;
    /// @return empty, or why the hardware does not sample
    virtual std::string start() = 0;
    /// Stops sampling. Samples that were taken can still be read.
    virtual void stop() = 0;
    /// Appends what was sampled since the last call, in the order of time. The first sample after a start may reach
    /// back to before it.
    /// @return false if the hardware ran out of room: it samples no more until it is stopped and started again
    virtual bool read(std::vector<PmSample>& samples) = 0;
};

} // namespace kvscope
