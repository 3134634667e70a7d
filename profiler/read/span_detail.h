// What another tool said of a span beside its name and time.
#pragma once

#include "profiler/read/recorded_flows.h"

#include <string>
#include <utility>
#include <vector>

namespace kvscope {

struct SpanDetail {
    std::string category; // empty: none
    /// In the order of the file; texts without their quotes, everything else as JSON writes it.
    std::vector<std::pair<std::string, std::string>> args;
};

/// Empty where nothing was said. @throws Error(BadInput | Cancelled)
SpanDetail spanDetail(const TraceReader& reader, int runId, const SpanPlace& span);

/// Whether a run has spans that something was said of, so that asking may be worth it.
bool hasSpanDetails(const TraceReader& reader);

} // namespace kvscope
