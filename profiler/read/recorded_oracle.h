// Whether a run measured the attention mass beside its steps.
#pragma once

#include "profiler/read/trace_reader.h"

namespace kvscope {

/// True for runs with --oracle, whose steps hold its time (as `other`). Reads the first steps only: the mass is in all
/// steps that select, or in none.
bool recordedOracle(const TraceReader& reader, int runId);

} // namespace kvscope
