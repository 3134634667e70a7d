// Where the steps of a run go on.
#pragma once

#include "profiler/read/trace_reader.h"

namespace kvscope {

/// The first recorded step of the run from `step` on, or `step` where none follows. Cheap. A trace may leave millions
/// of numbers out between two steps. Code that reads steps in pieces calls this before each piece, so that its work
/// depends on how many steps there are and not on their numbers. @throws Error(Storage)
int nextRecordedStep(const TraceReader& reader, int runId, int step);

} // namespace kvscope
