// Which spans led to a span and which followed from it, where that was recorded: a CUDA call and the kernels it
// started, here or by another tool. What no call leads to is joined by step, layer and stage instead (span_flow.h).
#pragma once

#include "profiler/read/span_rows.h"

#include <vector>

namespace kvscope {

struct RecordedFlow {
    bool leaves = false; // from the span that was asked about; else it arrives there
    SpanPlace other;
};

/// The flows of a span, in the order of the other span's time: at most 64 of the first thousand that the trace has in
/// each direction; none where it has no flows. Looks at every span once, unless `rows` has read them. @throws
/// Error(BadInput | Cancelled)
std::vector<RecordedFlow> recordedFlows(const TraceReader& reader, int runId, const SpanPlace& span,
                                        const SpanRows* rows = nullptr);

} // namespace kvscope
