// A span with what ties it to the call that led to it.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>

namespace kvscope {

struct LaunchedSpan {
    SpanRecord span;
    /// A call (a Range) and the kernels and copies that it started have the same number; 0: not known.
    std::uint32_t launch = 0;
};

} // namespace kvscope
