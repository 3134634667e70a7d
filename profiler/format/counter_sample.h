// Names of the counter tracks in KVScope's own recordings.
#pragma once

#include "core/trace/trace_sink.h"

namespace kvscope {

constexpr const char* kPcieToDevice = "PCIe bytes to device";
constexpr const char* kPcieToHost = "PCIe bytes to host";
constexpr const char* kLostGpuRecords = "GPU records lost";
// Tracks of what PM sampling counts: the same bytes over the link, and bytes of the GPU's memory.
constexpr const char* kPmToDevice = "PCIe bytes to device (PM)";
constexpr const char* kPmToHost = "PCIe bytes to host (PM)";
constexpr const char* kPmMemoryRead = "DRAM bytes read (PM)";
constexpr const char* kPmMemoryWritten = "DRAM bytes written (PM)";
constexpr const char* kLostPmSamples = "PM samples lost";

} // namespace kvscope
