// Counters of a recorded run: what the GPU's own hardware counted, to hold beside what the engine says it did.
#pragma once

#include "profiler/format/counter_sample.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvscope {

/// The samples in the order of time, those of all tracks together. Empty for traces from before there were counters.
std::vector<CounterSample> counterSamples(const TraceReader& reader, int runId);

/// Bytes over the link while decode steps ran, as the GPU's PCIe counters saw them and as the engine counted them. The
/// counters see whole packets and everybody's: step reports, launches, records of kernels, other programs.
struct PcieTraffic {
    bool sampled = false; // through PM sampling, not NVML
    std::int64_t countedToDevice = 0, countedToHost = 0;
    std::int64_t engineToDevice = 0, engineToHost = 0;

    /// Bytes that the engine's bytes should take on the link: kernels read and write 128 bytes a packet.
    std::int64_t expectedToDevice() const;
    std::int64_t expectedToHost() const; // with the requests for what is read
};

/// Samples that reach beyond the decode steps count with the share of their time. Absent: the run has no PCIe counters
/// or no decode step.
std::optional<PcieTraffic> pcieTraffic(const TraceReader& reader, int runId);

/// The traffic of one decode step. Steps that are too short for their samples are left out; the others are in order.
struct PcieStep {
    int step = 0;
    PcieTraffic traffic;
};
std::vector<PcieStep> pcieOfSteps(const TraceReader& reader, int runId);

/// The traffic of each of `count` intervals that divide [0, endNs] evenly; nothing in those in which no sample was
/// taken. The engine's bytes are 0. Empty where the run has no PCIe counters.
std::vector<std::optional<PcieTraffic>> pcieOfIntervals(const TraceReader& reader, int runId, double endNs, int count);

/// Samples of the GPU's counters that did not fit or made no sense; absent where none were taken.
std::optional<std::int64_t> lostPmSamples(const TraceReader& reader, int runId);

/// GPU records that CUPTI dropped or gave no time; absent where none were recorded or they were not counted.
std::optional<std::int64_t> lostGpuRecords(const TraceReader& reader, int runId);

} // namespace kvscope
