// How sure means over the decode steps of a run are: the block bootstrap of profiler/compare, with one block length for
// all series of the run.
#pragma once

#include "profiler/compare/bootstrap.h"
#include "profiler/report/run_data.h"

#include <optional>
#include <vector>

namespace kvscope::reports {

class StepIntervals {
public:
    static constexpr std::size_t kFewestSteps = 20; // as for a verdict on two runs
    static constexpr double kConfidence = 0.95;

    explicit StepIntervals(const RunData& run);
    bool possible() const { return bootstrap_.has_value(); }
    /// Steps drawn at a time, from how much step times resemble their neighbours; 0 if not possible().
    int blockLength() const { return blockLength_; }
    /// series: one value a counted decode step. The ends are NaN if not possible().
    Interval mean(const std::vector<double>& series) const;
    /// factor * sum(above) / sum(below). No interval where `below` is 0 in some step; all NaN where it is in all.
    Interval ratio(const std::vector<double>& above, const std::vector<double>& below, double factor = 1) const;

private:
    std::optional<BlockBootstrap> bootstrap_;
    int blockLength_ = 0;
};

/// Tokens per second of the counted decode steps.
Interval tokensPerSecond(const RunData& run, const StepIntervals& intervals);

} // namespace kvscope::reports
