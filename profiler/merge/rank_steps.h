// Numbers of each step of each rank of a group, and the sentence that says which rank is late.
#pragma once

#include "base/extents.h"
#include "base/indexed.h"
#include "profiler/merge/rank_group.h"
#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

enum class RankNumber : std::uint8_t { StepTime, HitRate, Misses, Bytes, Exposed, Wait };
inline constexpr std::size_t kRankNumbers = 6;

struct RankNumberInfo {
    RankNumber number;
    const char *id, *title, *unit, *help; // unit: "ns", "B", "blocks", or "" for a share of 1
};
std::span<const RankNumberInfo> rankNumbers();

struct RankSteps {
    Numbered<int> ranks; // [row], ascending: those of the trace and those that are missing
    Numbered<int> runs;  // [row] run of the trace; 0: the rank is missing
    int steps = 0;       // number of the last step of any rank + 1
    bool otherRequests = false;
    /// [number][step][row], NaN: not known, no such step, or a missing rank. Empty: no rank knows the number.
    PerValue<RankNumber, std::vector<float>, kRankNumbers> values;

    Extents<int, int> extents() const { return Extents<int, int>(steps, ranks.count()); }
    bool knows(RankNumber number) const { return !values[number].empty(); }
    float at(RankNumber number, int step, int row) const;
    /// Row of a run; absent: it is of no rank here.
    std::optional<int> rowOf(int runId) const;
};

/// Reads all steps of the ranks; prefill steps have times only. The wait of a rank in a step is the sum, over the spans
/// of track `collectives` that all ranks of the trace have under one name, of the time between its own start and the
/// latest start of any rank; it is as wrong as the clocks are.
/// @param runs of the trace, as given to rankGroups
/// @throws Error(Unsupported): more steps and ranks than fit into memory; Error(Storage | BadInput | Cancelled)
RankSteps readRankSteps(const TraceReader& reader, NumberedSpan<const RunRow> runs, const RankGroup& group);

/// Which rank is late, by how much, and whether it misses more: one sentence, or two. Where waits are known, the late
/// rank is the one that the others wait for; else the one whose steps take longest. Empty: fewer than two ranks have
/// known times.
std::string lateSentence(const RankSteps& steps);

} // namespace kvscope
