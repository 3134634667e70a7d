// Which run of a trace a command means.
#pragma once

#include "profiler/read/trace_reader.h"

#include <string>

namespace kvscope::cli {

/// wanted 0: the last run of the trace. @throws Error(BadInput) when there is no such run
int chooseRun(const TraceReader& reader, int wanted);

/// The rules of the trace format that rows of the run break, as RunCheck::sentence() says them; "" where none is
/// broken. Prints them to standard error for commands that compute with all rows and have no number of their own to
/// refuse.
/// @throws Error(BadInput) when there is no such run
std::string remarkOnBrokenRules(const TraceReader& reader, int run);

} // namespace kvscope::cli
