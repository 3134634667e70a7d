// Finding spans by what they are called, across all lanes in order of time.
#pragma once

#include "profiler/read/span_index.h"

#include <optional>
#include <string_view>
#include <vector>

namespace kvscope {

/// Which names hold every word of `text`, whatever their case; empty when there is no word.
std::vector<bool> namesMatching(const SpanIndex& index, std::string_view text);

/// How many spans have a name that matches.
std::size_t matchCount(const SpanIndex& index, const std::vector<bool>& matches);

/// The next span with a matching name, ordered by start, then lane. After `from`, or from ns on where there is none.
std::optional<SpanRef> nextMatch(const SpanIndex& index, const std::vector<bool>& matches,
                                 const std::optional<SpanRef>& from, std::int64_t ns);
/// The one before.
std::optional<SpanRef> previousMatch(const SpanIndex& index, const std::vector<bool>& matches,
                                     const std::optional<SpanRef>& from, std::int64_t ns);

} // namespace kvscope
