// What is said of the clocks of ranks and of ranks that are missing, a sentence each.
#pragma once

#include "profiler/merge/rank_group.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

/// What merging did to the clock of a run: key `clock_offset` of run_meta.
struct RankClockFact {
    std::int64_t addedNs = 0, errorNs = 0;
    std::string by;    // "reference", "monotonic", "collectives", "utc" or "created_utc"
    std::string doubt; // half a sentence where clocks contradict each other; empty: they do not
};
/// Absent: the run was not shifted.
std::optional<RankClockFact> clockFactOf(const RunRow& run);

/// Above this error, ns, the order of what happened on two ranks is not certain.
inline constexpr std::int64_t kCertainNs = 100'000;

/// One sentence about the offsets of a merged group and their errors; empty: no run of the group was shifted.
std::string clockSentence(const std::vector<RunRow>& runs, const RankGroup& group);
/// What is wrong with the group, without full stops: missing ranks, clocks that are off, clocks in common with none.
std::vector<std::string> rankProblems(const std::vector<RunRow>& runs, const RankGroup& group);

} // namespace kvscope
