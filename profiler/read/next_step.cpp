#include "profiler/read/next_step.h"

#include "profiler/read/reader_impl.h"

namespace kvscope {

int nextRecordedStep(const TraceReader& reader, int runId, int step) {
    return ReaderAccess::of(reader).nextStep(runId, step);
}

} // namespace kvscope
