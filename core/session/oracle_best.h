// Makes the oracle's record of a selection from the attention of every block. Both backends use this.
#pragma once

#include "core/trace/oracle.h"
#include "core/trace/trace_sink.h"
#include "kernels/selection.h"

#include <cstdint>
#include <span>

namespace kvscope {

/// Fills everything of `record` but step, layer, sequence and KV head. mass: share of the attention of each block that
/// the query sees. selected: indices into `mass`, each at most once. origins: one for each entry of `selected`.
void describeSelection(std::span<const float> mass, std::span<const std::int32_t> selected,
                       std::span<const Origin> origins, OracleRecord& record);

/// Copies the parts of `record` that go into the trace to `selection`; not the mass, which the caller has set.
void keepOracle(const OracleRecord& record, SelectionRecord& selection);

} // namespace kvscope
