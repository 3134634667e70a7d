// What a run fetched before the attention that needed it.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>

namespace kvscope {

/// Sums over the decode steps, layers, sequences and KV heads whose blocks were asked for ahead.
struct LookaheadTotals {
    std::int64_t selections = 0;
    std::int64_t predicted = 0;        // blocks asked for
    std::int64_t used = 0;             // of those, selected in the end
    std::int64_t wasted = 0;           // of those, transferred and not selected
    std::int64_t late = 0;             // of those, still on their way when the attention needed them
    std::optional<std::int64_t> stale; // blocks a lagging method wanted and could not attend; nothing: no lag
};

/// Absent where the run's method fetches on demand, or the trace is from before there was such a table.
std::optional<LookaheadTotals> lookaheadTotals(const TraceReader& reader, int runId);

} // namespace kvscope
