// Compares two runs and gives a verdict: whether B's decode steps take longer than A's, beyond what chance explains.
// docs/compare.md has the method and its definitions.
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

struct RunCheck;

/// Number of components that add up to a step: the stages of the layers, the stages outside them, and `other`.
constexpr int kComponentCount = kStageCount + kStepStageCount + 1;
std::string_view componentName(int component);

struct StepSample { // one decode step
    int step = 0;
    StepMark mark; // what decides its kind
    std::int64_t durationNs = 0, exposedNs = 0;
    std::array<std::int64_t, kComponentCount> componentNs{}; // sums over all layers
};

/// The numbers of a run that a comparison needs.
struct RunSample {
    std::string path;
    RunRow run;
    RunSummary summary;
    std::vector<StepSample> steps;         // decode steps in order
    std::vector<std::int32_t> promptStart; // the first tokens of every sequence, to tell prompts apart
    std::string
        answer; // answersText() of the run once all steps are read: "79930, correct"; empty: no fact is asked for
    bool oracle = false;     // the oracle measured attention mass, which takes time in every step
    int nextStep = 0;        // the step where extendRunSample reads on
    SummarySums sums;        // sums over the steps read so far
    std::string brokenRules; // what refuseBroken() found, as RunCheck::sentence() says it
};

/// @throws Error(BadInput | Storage | Cancelled), and what `progress` throws
RunSample loadRunSample(const TraceReader& reader, int runId, const Progress& progress = {});
/// Reads on where the sample ends, at most `mostSteps` steps (-1: all). Used for runs that grow, and to show progress
/// while a long run is read. An empty sample starts at the first step. When the last steps have been read, the summary
/// is that of the whole run. @return whether all steps have been read. @throws Error(BadInput | Storage | Cancelled)
bool extendRunSample(RunSample& sample, const TraceReader& reader, int runId, int mostSteps = -1);

/// Leaves out the numbers of a whole run that rows which break rules of the format spoil. Times stay, because without
/// them there is nothing to compare; a comparison's notes name the rules.
void refuseBroken(RunSample& sample, const RunCheck& check);

/// The decode steps 1, 1 + stride, ... up to `last`.
struct EvenSteps {
    int stride = 1, last = 0;
};
/// About `wanted` evenly spaced decode steps that all runs have; the shortest run has `shortestRun` steps. The stride
/// is odd, because blocks open every 2^n steps and with an even stride would open in all of these steps or in none.
EvenSteps evenSteps(int shortestRun, int wanted);
/// Reads only these steps of a long run, for a first answer at once. The summary then has only numbers of whole steps:
/// no locality and no components. @throws Error(BadInput | Storage | Cancelled)
RunSample glanceAtRun(const TraceReader& reader, int runId, const EvenSteps& which);

/// Why two runs cannot be compared.
struct Obstacle {
    std::string what;          // "batch 1 against 4"
    bool mayBeIgnored = false; // the comparison still means something if the reader knows of this
    bool untilItEnds = false;  // exists only because a run is still being recorded
};
/// What keeps the runs from being compared; empty: nothing does. Runs of one side are repeats of each other, so that
/// their settings must be the same too.
std::vector<Obstacle> findObstacles(std::span<const RunSample> a, std::span<const RunSample> b);

enum class Verdict : std::uint8_t {
    Faster,          // B takes less time, beyond noise
    Slower,          // B takes more time, beyond noise and beyond the threshold
    NoDifference,    // the interval contains 1 and lies within kTellable, or the threshold
    WithinThreshold, // B takes more time beyond noise, but not more than the threshold beyond noise
    CannotTell       // the interval contains 1 and reaches beyond kTellable, or the threshold: it is too wide
};
constexpr const char* nameOf(Verdict verdict) {
    constexpr const char* names[] = {"faster", "slower", "no difference within noise", "within the threshold",
                                     "cannot tell"};
    return names[int(verdict)];
}
/// The smallest difference, as a share of A, that a comparison without a threshold shall tell. An interval that
/// contains "no difference" and reaches further than this decides nothing. It lies between the 3 % from which insights
/// note something and the tenth from which they raise an alarm.
constexpr double kTellable = 0.05;

struct CompareOptions {
    double threshold = 0; // accepted slowdown: 0.03 is 3 %
    double confidence = 0.95;
    std::uint64_t seed = 1;  // seed of the resampling
    std::string other = "B"; // the name of b in sentences
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
    std::string other; // the name of b in sentences
    /// The median, over the compared steps, of B's time divided by A's time in the same step.
    Interval ratio;
    /// B's mean step time divided by A's over the same steps. The ratio of tokens/s follows from this one.
    Interval meanRatio;
    double aMedianNs = 0, bMedianNs = 0; // of the compared steps
    int steps = 0;                       // steps that are compared: all runs have them
    /// Steps left out: cold ones, ones that open a block, ones that some run lacks.
    int first = 0, opening = 0, unpaired = 0;
    bool openingKept = false; // steps that open a block are compared too, because too few others were left
    int blockLength = 0;      // steps resampled together
    int aRuns = 0, bRuns = 0;
    double betweenRuns = 0; // relative standard deviation between repeats; NaN without repeats
    /// In pipeline order; their deltas add up to that of `step`. Empty where a run does not know its stages' times.
    std::vector<ComponentDelta> components;
    /// exposed: measured or modelled as in the runs, no part of the sum; NaN where a run does not know it.
    ComponentDelta step, exposed;
    std::vector<Quantity> quantities;
    std::vector<SettingDifference> differences;
    std::vector<std::string> notes; // what a reader should know before trusting the verdict
    std::string sentence;           // the verdict in words
};

/// Compares runs without obstacles, or with obstacles that may be ignored. @throws Error(BadInput) when the runs have
/// too few steps in common
Comparison compareRuns(std::span<const RunSample> a, std::span<const RunSample> b, const CompareOptions& options = {});

} // namespace kvscope
