// What recording a run added to its steps, as far as somebody measured it.
#pragma once

#include "profiler/read/trace_reader.h"

#include <optional>
#include <string>

namespace kvscope {

/// Keys of the object in `recording_overhead` of run_meta, which kvscope.measure_overhead writes.
inline constexpr const char* kRecordingOverhead = "recording_overhead";
/// Track of counters: nanoseconds of each interval that recording took of the thread that decodes.
inline constexpr const char* kRecordingTrack = "recording (ns)";
/// From this share of a step's time on, recording changes what it measures by more than two careful measurements
/// differ.
inline constexpr double kCostlyRecording = 0.03;

struct RecordingCost {
    enum class Way {
        Unknown,
        Compared, // the same steps with and without recording, measured in turn
        Counted   // the time that recording took of the thread that decodes
    };
    Way way = Way::Unknown;
    /// Of a step's time without recording: 0.01 is 1 %. Noise may make a compared one negative. Compared ones are of
    /// processor time where both are known: other programs do not change it.
    double share = 0;
    double plainMs = 0, recordedMs = 0; // of a step, wall time; Compared only
    std::optional<double> wallShare;    // Compared only
    int steps = 0;                      // Compared: of one generation; Counted: intervals
    std::optional<bool> tokensEqual;    // Compared only: the generated tokens were the same

    bool known() const { return way != Way::Unknown; }
    bool costly() const { return known() && share > kCostlyRecording; }
    /// "2.1 % of a step, measured with and without recording", or "not known".
    std::string text() const;
};

/// Key kRecordingOverhead of the run; unknown without it.
RecordingCost comparedRecordingCost(const RunRow& run);
/// comparedRecordingCost, or else the sum of the samples on kRecordingTrack over the sum of their intervals.
/// @throws Error(Storage | Cancelled)
RecordingCost recordingCost(const TraceReader& reader, const RunRow& run);

} // namespace kvscope
