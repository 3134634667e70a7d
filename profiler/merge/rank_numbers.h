// The numbers of the ranks of one group beside each other, and their sums, in which no KV head counts twice.
#pragma once

#include "profiler/merge/rank_group.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvscope {

/// Of the decode steps of one rank; nothing where the run does not know it.
struct RankNumbers {
    int steps = 0;
    std::optional<double> medianStepMs;
    std::optional<std::int64_t> hits, misses, h2dBytes;
    std::optional<double> exposedMs;
    int slowest = 0; // of the common steps, how many took longest on this rank
};

struct GroupNumbers {
    std::vector<RankNumbers> ranks;           // as RankGroup::ranks
    int commonSteps = 0;                      // that all ranks have, with known times
    std::optional<std::int64_t> hits, misses; // sums over ranks without replicas
    /// Ranks that should select the same, because they hold the same heads of the same requests, and do not: they are
    /// counted by themselves.
    std::vector<int> differing;
};

/// @param runs of the trace, as given to rankGroups. Whether replicas select the same is looked up in their first 64
/// decode steps. @throws Error(Storage | BadInput | Cancelled)
GroupNumbers numbersOf(const TraceReader& reader, const std::vector<RunRow>& runs, const RankGroup& group);

} // namespace kvscope
