// Where the steps of a run go on.
#pragma once

#include "profiler/read/trace_reader.h"

namespace kvscope {

/// The first recorded step of the run from `step` on, or `step` where none follows. Cheap. Steps may have any numbers:
/// who reads them in pieces asks before each, so that the rows bound the work. @throws Error(Storage)
int nextRecordedStep(const TraceReader& reader, int runId, int step);

} // namespace kvscope
