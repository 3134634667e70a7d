// Where the time of a run's decode steps went, added up from the rows of its steps and layers and from the spans of its
// GPU. docs/roofline.md ("Why not the roof?") has the definitions.
#pragma once

#include "core/trace/stage.h"
#include "profiler/insights/exposure.h"
#include "profiler/roofline/measured_run.h"

#include <array>
#include <cstdint>
#include <optional>

namespace kvscope {

/// A stretch of a run's time; -1: of no step, of no layer.
struct LossPlace {
    int step = -1, layer = -1;
    std::int64_t startNs = 0, durationNs = 0; // on the run's clock
};

/// Time over all counted steps, and the longest piece of it.
struct TimeSum {
    double ns = 0;
    LossPlace most;
    double mostNs = 0;
    void add(double part, const LossPlace& place);
};

/// Sums over the steps that a MeasuredRun counts. Every nanosecond of a step is in one of them: a stage has what it
/// took without the transfers that it waited for and without the time in which the GPU did nothing.
struct StepTimes {
    int steps = 0;
    double wallNs = 0;    // of the steps
    double betweenNs = 0; // from the end of the step before to each step, whatever happened there
    std::array<TimeSum, 1 + kStageCount + kStepStageCount> stages; // by StageId::number(); [0]: no stage claims it
    std::array<TimeSum, kExposureCount> exposed;                   // measured transfers that a step waited for
    TimeSum gaps;                                                  // in steps: no kernel and no copy ran
    TimeSum idle;                                                  // from the end of the step before to the step
    TimeSum initialisation; // of both: before a kernel that ran for the first time
    TimeSum recorder;       // of both: CUPTI was at work
    bool kernels = false;   // of the steps: recorded, so that gaps are known
    struct Prefill {
        int step = 0;
        double wallNs = 0;
        TimeSum gaps, initialisation, recorder;
        bool kernels = false;
    };
    std::optional<Prefill> prefill; // the first one
};

/// A gap before a kernel that never ran before is initialisation from this length on: loading a library's kernels takes
/// milliseconds, a launch some microseconds.
inline constexpr std::int64_t kInitialisationNs = 100'000;

/// Reads every layer of the counted steps, and every kernel. exposure: of the same run, with its layers.
/// @throws Error(Cancelled)
StepTimes stepTimesOf(const TraceReader& reader, const MeasuredRun& run, const ExposureReport& exposure);

} // namespace kvscope
