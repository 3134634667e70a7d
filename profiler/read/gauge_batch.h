// Reads the counters of a run a piece at a time, as span_batch reads its spans: what the GPU's counters saw in
// intervals, what another tool recorded, and how much of the KV cache the device held.
#pragma once

#include "profiler/read/gauge_series.h"
#include "profiler/read/resident_pools.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace kvscope {

struct GaugeSample {
    std::int32_t track = 0; // index into GaugeBatch::tracks
    std::int64_t startNs = 0, endNs = GaugeSeries::kOpen;
    double value = 0; // in the track's unit
};

/// How far the counters of a run are read.
struct GaugePosition {
    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();
    std::int64_t counter = kNone, gauge = kNone; // ids of the last rows looked at
    int measuredStep = -1;                       // the last one whose measured attention is read
    std::optional<bool> oracle;                  // whether attention was measured; absent: not known yet
    int countedStep = -1;                        // the last one whose selections are counted
    std::shared_ptr<const ResidentPools> pools;  // slots in use after countedStep; null: nothing is counted
};

struct GaugeBatch {
    std::vector<GaugeInfo> tracks;
    std::vector<GaugeSample> samples;
    GaugePosition next;
    bool atEnd = false; // there was nothing more at this moment
    double counted = 0; // share of the run's steps whose selections are counted, 0..1
};

/// Name of the track that is computed from the selections: bytes of the blocks that have a slot on the device.
inline constexpr const char* kResidentKv = "KV blocks on the device";
/// Names of the tracks of what a run with --oracle measured, in percent, mean over all layers, sequences and KV heads
/// that selected in a step: which share of the best blocks was selected, and which share of the full attention fell on
/// blocks that were not.
inline constexpr const char* kOracleRecall = "oracle recall";
inline constexpr const char* kLostMass = "lost attention mass";

/// About `rows` rows after `from`, the selections of a step always together. Missing tables are empty ones. Counted
/// bytes are given per second.
/// @throws Error(BadInput): no such run, damaged; Error(Cancelled)
GaugeBatch readGauges(const TraceReader& reader, int runId, const GaugePosition& from, int rows);

} // namespace kvscope
