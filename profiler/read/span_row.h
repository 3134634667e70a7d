// The row of a span that is known by where it lies.
#pragma once

#include "profiler/read/recorded_flows.h"

#include <cstdint>
#include <optional>

namespace kvscope {

class Connection;

/// span.id; absent: there is no such span. Imports number their spans by time, which makes it quick; in other runs it
/// may look at every span once.
std::optional<std::int64_t> spanRow(Connection& connection, int runId, const SpanPlace& span);

} // namespace kvscope
