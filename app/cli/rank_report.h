// What `kvscope-cli info` and `merge` say of ranks.
#pragma once

#include "profiler/read/trace_reader.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace kvscope::cli {

/// An array with an object per group of ranks in the trace; empty: no run has a rank.
nlohmann::ordered_json rankGroupsOf(const TraceReader& reader, const std::vector<RunRow>& runs);

} // namespace kvscope::cli
