// Counters of a recorded run: what the GPU's own hardware counted, to hold beside what the engine says it did.
#pragma once

#include "profiler/read/trace_reader.h"
#include "profiler/record/counter_sample.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvscope {

/// In the order of time, tracks side by side. Empty in traces from before there were counters.
std::vector<CounterSample> counterSamples(const TraceReader& reader, int runId);

/// Bytes over the link while decode steps ran, as the GPU's PCIe counters saw them and as the engine counted them. The
/// counters see everything: packet headers (some 16 % on 128-byte packets), step reports, launches, other programs.
struct PcieTraffic {
    std::int64_t countedToDevice = 0, countedToHost = 0;
    std::int64_t engineToDevice = 0, engineToHost = 0;
};

/// Samples that reach beyond the decode steps count with the share of their time. Absent: the run has no PCIe counters
/// or no decode step.
std::optional<PcieTraffic> pcieTraffic(const TraceReader& reader, int runId);

/// GPU records that CUPTI dropped or gave no time; absent where none were recorded or they were not counted.
std::optional<std::int64_t> lostGpuRecords(const TraceReader& reader, int runId);

} // namespace kvscope
