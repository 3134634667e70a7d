// Whether a span is slow: how long it is beside other spans of the same name.
#pragma once

#include "profiler/read/span_index.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace kvscope {

struct SpanKind {
    std::size_t spans = 0; // with the same name on the same track, itself included; of a decode step, those of others
    std::int64_t shortestNs = 0, medianNs = 0, longestNs = 0;
    std::int64_t percentile99Ns = 0; // 99 of 100 are no longer; the longest where there are fewer than 100
    std::size_t shorter = 0;         // so many are shorter than this one
};

/// Looks at every span of the track. Absent: it is the only one of its kind, or the track has more than `most`.
std::optional<SpanKind> kindOfSpan(const SpanIndex& index, SpanRef ref, const PromptSteps& prompts = {},
                                   std::size_t most = 1'000'000);

} // namespace kvscope
