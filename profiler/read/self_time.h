// Where the time of a stretch of a run went: per name, the time that no span nested inside claims.
#pragma once

#include "profiler/read/span_index.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct SelfTime {
    std::string track, name;
    std::uint32_t spans = 0;                             // that meet the range
    std::int64_t selfNs = 0, totalNs = 0, longestNs = 0; // cut to the range
};

enum class SelfTimeBy {
    Name,     // every name of every track: kernels apart
    Component // the part of a kernel's name before ": ", which is the stage it was launched for
};

/// Of [fromNs, toNs), longest self time first. On one track, spans at depth d + 1 are inside those at depth d; spans
/// that overlap others of their track and depth have no children. Spans that `keep` refuses are not counted; what they
/// claim of an enclosing one is not its own all the same.
std::vector<SelfTime> selfTimes(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs, SelfTimeBy by,
                                const std::function<bool(const IndexedSpan&)>& keep = {});

/// "stage1" of "stage1: selectKernel<128, 2>"; the whole name where there is no such prefix.
std::string_view componentOf(std::string_view name);

} // namespace kvscope
