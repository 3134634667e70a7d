// What another tool said of a span, beside its name and time.
#pragma once

#include "profiler/read/span_rows.h"

#include <string>
#include <utility>
#include <vector>

namespace kvscope {

struct SpanDetail {
    std::string category; // empty: none
    /// In the order of the file. Texts are without their quotes; everything else is as JSON writes it.
    std::vector<std::pair<std::string, std::string>> args;
};

/// Empty where nothing was said. Looks at every span once, unless `rows` has read them.
/// @throws Error(BadInput | Cancelled)
SpanDetail spanDetail(const TraceReader& reader, int runId, const SpanPlace& span, const SpanRows* rows = nullptr);

/// Whether a run has spans that something was said of, so that asking may be worth it.
bool hasSpanDetails(const TraceReader& reader);

} // namespace kvscope
