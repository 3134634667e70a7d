// Which run of a trace a command means.
#pragma once

#include "profiler/read/trace_reader.h"

namespace kvscope::cli {

/// wanted 0: the last run of the trace. @throws Error(BadInput) when there is no such run
int chooseRun(const TraceReader& reader, int wanted);

} // namespace kvscope::cli
