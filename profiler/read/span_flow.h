// The causes and effects of a span: arrows from the stage that launched a kernel to the kernel, and from a transfer to
// the attention that used its blocks. They are found by step, layer and stage, which every trace records. Calls that
// launched something are not in every trace (recorded_flows.h).
#pragma once

#include "profiler/read/span_index.h"

#include <optional>
#include <vector>

namespace kvscope {

struct SpanFlow {
    enum class Kind { Launch, Transfer };
    Kind kind = Kind::Launch;
    SpanRef from, to;
};

/// Arrows that begin or end at this span, in order of time; at most 64 of them.
std::vector<SpanFlow> flowsOf(const SpanIndex& index, SpanRef ref);

/// The span of a step on the host track at depth 0.
std::optional<SpanRef> spanOfStep(const SpanIndex& index, int step);

/// The span that a span waited for, as far as its own and the other tracks show it.
struct SpanWait {
    std::int64_t idleNs = 0;          // since the span before it in its lane ended; 0 if there is none
    std::optional<SpanRef> before;    // that span
    std::optional<SpanRef> lastToEnd; // the span of another track that ended last within that gap
};
SpanWait waitOf(const SpanIndex& index, SpanRef ref);

} // namespace kvscope
