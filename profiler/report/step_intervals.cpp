#include "profiler/report/step_intervals.h"

#include "profiler/report/ratio.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvscope::reports {
namespace {

constexpr std::uint64_t kSeed = 1;

double sumOf(const std::vector<double>& series) { return std::accumulate(series.begin(), series.end(), 0.0); }

} // namespace

StepIntervals::StepIntervals(const RunData& run) {
    const std::vector<StepRow> steps = run.countedSteps();
    if (steps.size() < kFewestSteps) return;
    std::vector<double> durations;
    for (const StepRow& step : steps) durations.push_back(double(step.durationNs));
    blockLength_ = bootstrapBlockLength(durations);
    bootstrap_.emplace(durations.size(), blockLength_, kConfidence, kSeed);
}

Interval StepIntervals::mean(const std::vector<double>& series) const {
    if (series.empty()) return {kUndefined, kUndefined, kUndefined};
    if (!possible()) return {sumOf(series) / double(series.size()), kUndefined, kUndefined};
    return bootstrap_->mean(series);
}

Interval StepIntervals::ratio(const std::vector<double>& above, const std::vector<double>& below, double factor) const {
    const double whole = sumOf(below);
    if (whole <= 0) return {kUndefined, kUndefined, kUndefined};
    Interval result{sumOf(above) / whole, kUndefined, kUndefined};
    // A resample of steps in which nothing was counted would be 0 / 0.
    const bool counted = std::all_of(below.begin(), below.end(), [](double value) { return value > 0; });
    if (possible() && counted) result = bootstrap_->ratioOfSums(above, below);
    return {factor * result.value, factor * result.low, factor * result.high};
}

Interval tokensPerSecond(const RunData& run, const StepIntervals& intervals) {
    std::vector<double> tokens, durations;
    for (const StepRow& step : run.countedSteps()) {
        tokens.push_back(double(step.decodeTokens()));
        durations.push_back(double(step.durationNs));
    }
    return intervals.ratio(tokens, durations, 1e9);
}

} // namespace kvscope::reports
