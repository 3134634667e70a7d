#pragma once

#include <cstdint>
#include <string>

namespace kvscope {

/// What something was counted in an interval of a run; the samples of one track follow each other.
struct CounterSample {
    std::string track;                        // e.g. "PCIe bytes to device"
    std::int64_t startNs = 0, durationNs = 0; // relative to the run's start
    std::int64_t value = 0;                   // counted within the interval
};

// Tracks of KVScope's own recordings.
constexpr const char* kPcieToDevice = "PCIe bytes to device";
constexpr const char* kPcieToHost = "PCIe bytes to host";
constexpr const char* kLostGpuRecords = "GPU records lost";
// The same through PM sampling, and what it counts beside it.
constexpr const char* kPmToDevice = "PCIe bytes to device (PM)";
constexpr const char* kPmToHost = "PCIe bytes to host (PM)";
constexpr const char* kPmMemoryRead = "DRAM bytes read (PM)";
constexpr const char* kPmMemoryWritten = "DRAM bytes written (PM)";
constexpr const char* kLostPmSamples = "PM samples lost";

} // namespace kvscope
