// Finding spans by what they are called, across all lanes in order of time.
#pragma once

#include "profiler/read/span_index.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Which names hold every word of `text`, whatever their case; empty when there is no word. `also`: more to look in, by
/// a name's component (SpanIndex::components); null: nothing.
std::vector<bool> namesMatching(const SpanIndex& index, std::string_view text,
                                const std::function<std::string(std::string_view component)>& also = {});
/// Goes on where the index has more names than when `matches` were found: looks only at the new ones.
void matchNewNames(const SpanIndex& index, std::string_view text,
                   const std::function<std::string(std::string_view component)>& also, std::vector<bool>& matches);

/// How many spans have a name that matches.
std::size_t matchCount(const SpanIndex& index, const std::vector<bool>& matches);

/// Which of the matching spans `ref` is, in the order of nextMatch, from 1 on; 0: it does not match. Looks at every
/// span before it.
std::size_t matchNumber(const SpanIndex& index, const std::vector<bool>& matches, SpanRef ref);

/// The next span with a matching name, ordered by start, then lane. After `from`, or from ns on where there is none.
std::optional<SpanRef> nextMatch(const SpanIndex& index, const std::vector<bool>& matches,
                                 const std::optional<SpanRef>& from, std::int64_t ns);
/// The previous span with a matching name, in the same order.
std::optional<SpanRef> previousMatch(const SpanIndex& index, const std::vector<bool>& matches,
                                     const std::optional<SpanRef>& from, std::int64_t ns);

} // namespace kvscope
