// The tracks of the counts that our own recordings hold.
#pragma once

#include "core/trace/trace_sink.h"

namespace kvscope {

// Tracks of KVScope's own recordings.
constexpr const char* kPcieToDevice = "PCIe bytes to device";
constexpr const char* kPcieToHost = "PCIe bytes to host";
constexpr const char* kLostGpuRecords = "GPU records lost";
// The track of the same bytes counted by PM sampling, and the tracks that it counts besides.
constexpr const char* kPmToDevice = "PCIe bytes to device (PM)";
constexpr const char* kPmToHost = "PCIe bytes to host (PM)";
constexpr const char* kPmMemoryRead = "DRAM bytes read (PM)";
constexpr const char* kPmMemoryWritten = "DRAM bytes written (PM)";
constexpr const char* kLostPmSamples = "PM samples lost";

} // namespace kvscope
