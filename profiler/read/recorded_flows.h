// Which spans led to a span and which followed from it, where that was recorded: a CUDA call and the kernels it
// started, here or by another tool. What no call leads to is joined by step, layer and stage instead (span_flow.h).
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// Enough to find a row of `span` again.
struct SpanPlace {
    std::string track, name;
    std::int64_t startNs = 0, durationNs = 0;
    int depth = 0;
    bool operator==(const SpanPlace&) const = default;
};

struct RecordedFlow {
    bool leaves = false; // from the span that was asked about; else it arrives there
    SpanPlace other;
};

/// At most 64, in order of the other span's time; none where the trace has no flows. May look at every span once.
/// @throws Error(BadInput | Cancelled)
std::vector<RecordedFlow> recordedFlows(const TraceReader& reader, int runId, const SpanPlace& span);

} // namespace kvscope
