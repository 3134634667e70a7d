// Sums of steps and layers that count only a part of them: what the views' shared filter lets through.
#pragma once

#include "base/indexed.h"
#include "profiler/read/trace_reader.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// Ranges that count, both ends included; none: all of them.
struct ReadFilter {
    std::vector<std::pair<int, int>> layers, kvHeads, steps;
    /// Steps that generated a token whose text holds this, as SQLite's LIKE has it: the case of A to Z does not matter.
    std::string text;
    /// A stage's name, where times are read by layer; empty: all stages.
    std::string component;

    bool hasLayer(int layer) const;
    bool hasKvHead(int head) const;
    bool hasStep(int step) const; // by the ranges alone
    bool empty() const {
        return layers.empty() && kvHeads.empty() && steps.empty() && text.empty() && component.empty();
    }
};

/// `text` as a pattern of LIKE ... ESCAPE '\': found anywhere, with no character that means something else.
std::string likePattern(const std::string& text);

/// Whether each of the steps [first, last] passes, by its number and by the text of its tokens.
Numbered<bool> stepsThatPass(const TraceReader& reader, int runId, const ReadFilter& filter, int first, int last);
/// Which blocks of a sequence hold this text, by the joined bytes of its tokens: a match across a border counts for
/// both blocks. The case of A to Z does not matter. One entry per block that has begun.
Numbered<bool> blocksWithText(const TraceReader& reader, int runId, int sequence, const std::string& text);

/// As TraceReader::steps, for the steps of the filter; everything from `selected` on is summed over its layers only.
/// Wall time stays that of the whole step. With KV heads, host-to-device bytes are those of the heads' misses, or -1
/// where a layer loaded something else as well; what is recorded for whole layers only (d2hBytes, transferNs,
/// exposedNs) is -1. So is, with or without a filter, every number that the run does not know.
std::vector<StepRow> filteredSteps(const TraceReader& reader, int runId, const ReadFilter& filter, int firstStep = 0,
                                   int lastStep = -1);
/// As TraceReader::layerMatrix over all sequences or one, NaN where the filter leaves a cell out. With KV heads a cell
/// is the sum (of masses the mean) over those, and NaN for times; with a component LayerTime is the time in that stage.
StepMatrix filteredLayers(const TraceReader& reader, int runId, Metric metric, int sequence, const ReadFilter& filter,
                          int firstStep = 0, int lastStep = -1);
/// As TraceReader::breakdownSteps. With a filter on layers there is nothing outside them: the stages outside and
/// `other` are 0, and the step's duration is the time in its layers.
std::vector<BreakdownStep> filteredBreakdownSteps(const TraceReader& reader, int runId, const ReadFilter& filter,
                                                  int firstStep = 0, int lastStep = -1);
/// As TraceReader::breakdown, under the same rule.
std::vector<BreakdownRow> filteredBreakdown(const TraceReader& reader, int runId, const ReadFilter& filter);
/// Likewise, of only these steps, which ascend.
std::vector<BreakdownRow> breakdownOf(const TraceReader& reader, int runId, const ReadFilter& filter,
                                      std::span<const int> steps);

} // namespace kvscope
