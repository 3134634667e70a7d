// Thrash of a serving run: misses of blocks that the same request had selected a few steps before, so that a device
// with more room would have had them. Other misses cannot be helped: blocks that a request selects for the first time
// or after long, and all blocks of a row that joins or returns from a pause.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// The decode rows of one iteration together.
struct ThrashRow {
    int iteration = 0;
    std::int64_t misses = 0;
    std::int64_t again = 0; // of these, blocks that the same request had selected in one of the last w steps
};

struct Thrash {
    /// Unknown: the trace has neither. Selections: counted block by block. Counters: from the iterations' numbers,
    /// where one pool is shared by all rows: misses of rows that decoded in the iteration before, without the blocks
    /// that these selected outside of their working sets. That is at most what there was.
    enum class Basis { Unknown, Selections, Counters } basis = Basis::Unknown;
    int window = 12;             // w of the run's server
    std::vector<ThrashRow> rows; // iterations that decode, in their order
};

/// selections: reads the selected blocks where the trace has them, which takes as long as reading all of them.
/// @throws Error as TraceReader does, also for a damaged selection
Thrash readThrash(const TraceReader& reader, int runId, bool selections);

/// The share of the misses of all rows within `spanNs` before the end of an iteration that were of the kind `again`.
/// iterationEnd: nanoseconds, [row] ascending. NaN: there was no miss in that time.
std::vector<double> thrashOverTime(const std::vector<ThrashRow>& rows, const std::vector<double>& iterationEnd,
                                   double spanNs);

} // namespace kvscope
