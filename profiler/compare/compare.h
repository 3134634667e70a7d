// The verdict on two runs: whether B's decode steps take longer than A's, beyond what chance explains. docs/compare.md
// has the method and its definitions.
#pragma once

#include "profiler/compare/bootstrap.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/summary.h"
#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// Stages of the layers, stages outside them, `other`: together the step.
constexpr int kComponentCount = kStageCount + kStepStageCount + 1;
std::string_view componentName(int component);

struct StepSample { // one decode step
    int step = 0;
    StepMark mark; // what decides its kind
    std::int64_t durationNs = 0, exposedNs = 0;
    std::array<std::int64_t, kComponentCount> componentNs{}; // all layers
};

/// What a comparison needs to know about a run.
struct RunSample {
    std::string path;
    RunRow run;
    RunSummary summary;
    std::vector<StepSample> steps;         // decode steps in order
    std::vector<std::int32_t> promptStart; // the first tokens of every sequence, to tell prompts apart
    bool oracle = false;                   // measured the attention mass beside, in the steps' time
    int nextStep = 0;                      // extendRunSample reads on here
    SummarySums sums;                      // of what was read so far
};

/// @throws Error(BadInput | Storage | Cancelled), and what `progress` throws
RunSample loadRunSample(const TraceReader& reader, int runId, const Progress& progress = {});
/// Reads on where the sample ended, at most so many steps (-1: all there are): for runs that grow, and to say how far a
/// long reading is. An empty sample begins. The summary is that of the whole run, made with the last steps.
/// @return whether that was all @throws Error(BadInput | Storage | Cancelled)
bool extendRunSample(RunSample& sample, const TraceReader& reader, int runId, int mostSteps = -1);

/// Decode steps 1, 1 + stride, ... up to the last.
struct EvenSteps {
    int stride = 1, last = 0;
};
/// About so many of the steps that runs have of which the shortest has `shortestRun`. The stride is odd: blocks open
/// every 2^n steps, and would open in all of the steps or in none.
EvenSteps evenSteps(int shortestRun, int wanted);
/// A first answer on a long run in a moment: these steps alone, and of the summary what whole steps know: no locality
/// and no components. @throws Error(BadInput | Storage | Cancelled)
RunSample glanceAtRun(const TraceReader& reader, int runId, const EvenSteps& which);

/// Why two runs cannot be compared.
struct Obstacle {
    std::string what;          // "batch 1 against 4"
    bool mayBeIgnored = false; // the numbers still mean something if the reader knows
    bool untilItEnds = false;  // only because a run is still being recorded
};
/// Empty: comparable. Runs of one side are repeats of each other: there also the settings must be the same.
std::vector<Obstacle> findObstacles(std::span<const RunSample> a, std::span<const RunSample> b);

enum class Verdict : std::uint8_t {
    Faster,          // B takes less time, beyond noise
    Slower,          // B takes more time, beyond noise and beyond the threshold
    NoDifference,    // the interval holds 1, and nothing beyond what is asked for
    WithinThreshold, // B takes more time beyond noise, but not beyond noise and threshold
    CannotTell       // the interval holds 1 and reaches beyond what is asked for: too wide to say anything
};
constexpr const char* nameOf(Verdict verdict) {
    constexpr const char* names[] = {"faster", "slower", "no difference within noise", "within the threshold",
                                     "cannot tell"};
    return names[int(verdict)];
}
/// A difference this large, as a share of A, is what a comparison without a threshold is asked for: an interval that
/// holds "none" and reaches further decides nothing. Insights take note of 3 %, and call a tenth an alarm.
constexpr double kTellable = 0.05;

struct CompareOptions {
    double threshold = 0; // slowdown that is accepted: 0.03 = 3 %
    double confidence = 0.95;
    std::uint64_t seed = 1;  // of the resampling
    std::string other = "B"; // what sentences call b
};

struct ComponentDelta {
    std::string component;
    double aNs = 0, bNs = 0; // mean per compared step
    Interval deltaNs;        // b - a
};

/// A number of the whole run, side by side; mean over repeats.
struct Quantity {
    std::string name, unit;
    double a = 0, b = 0; // NaN: undefined
};

struct SettingDifference {
    std::string key, a, b;
};

struct Comparison {
    Verdict verdict = Verdict::NoDifference;
    double threshold = 0, confidence = 0;
    std::string other; // what sentences call b
    /// Median over the compared steps of B's time over A's in the same step.
    Interval ratio;
    /// Mean step time of B over that of A, the same steps: what tokens/s follow.
    Interval meanRatio;
    double aMedianNs = 0, bMedianNs = 0;      // of the compared steps
    int steps = 0;                            // compared: in all runs
    int first = 0, opening = 0, unpaired = 0; // left out: cold steps, block-opening ones, not in all runs
    bool openingKept = false;                 // too few steps were left without them
    int blockLength = 0;                      // steps resampled together
    int aRuns = 0, bRuns = 0;
    double betweenRuns = 0;                 // relative standard deviation of repeats; NaN without repeats
    std::vector<ComponentDelta> components; // in pipeline order; their deltas add up to the step's
    ComponentDelta step, exposed;           // exposed: measured or modelled as the runs say; no part of the sum
    std::vector<Quantity> quantities;
    std::vector<SettingDifference> differences;
    std::vector<std::string> notes; // what a reader should know before trusting the verdict
    std::string sentence;           // the verdict in words
};

/// The runs are comparable, or the obstacles left may be ignored. @throws Error(BadInput) when too few steps are common
Comparison compareRuns(std::span<const RunSample> a, std::span<const RunSample> b, const CompareOptions& options = {});

} // namespace kvscope
