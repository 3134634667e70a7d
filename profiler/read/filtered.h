// The sums of steps and layers again, counting only some of them.
#pragma once

#include "profiler/read/trace_reader.h"

#include <utility>
#include <vector>

namespace kvscope {

/// Ranges of layers and steps that count, both ends included; none: all of them.
struct ReadFilter {
    std::vector<std::pair<int, int>> layers, steps;
    bool hasStep(int step) const;
    bool empty() const { return layers.empty() && steps.empty(); }
};

/// As TraceReader::steps, for the steps of the filter; everything from `selected` on is summed over its layers only.
/// Wall time stays that of the whole step.
std::vector<StepRow> filteredSteps(const TraceReader& reader, int runId, const ReadFilter& filter, int firstStep = 0,
                                   int lastStep = -1);
/// As TraceReader::breakdownSteps. With a filter on layers there is nothing outside them: the stages outside and
/// `other` are 0, and the step's duration is the time in its layers.
std::vector<BreakdownStep> filteredBreakdownSteps(const TraceReader& reader, int runId, const ReadFilter& filter,
                                                  int firstStep = 0, int lastStep = -1);
/// As TraceReader::breakdown, under the same rule.
std::vector<BreakdownRow> filteredBreakdown(const TraceReader& reader, int runId, const ReadFilter& filter);

} // namespace kvscope
