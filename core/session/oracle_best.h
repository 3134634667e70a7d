// What the oracle says of a selection, from the attention of every block. Shared by the backends.
#pragma once

#include "core/trace/oracle.h"
#include "core/trace/trace_sink.h"
#include "kernels/selection.h"

#include <cstdint>
#include <span>

namespace kvscope {

/// mass: share of the attention of each block within reach. selected: indices into it, each once; origins: theirs.
/// Fills everything of `record` but step, layer, sequence and KV head.
void describeSelection(std::span<const float> mass, std::span<const std::int32_t> selected,
                       std::span<const Origin> origins, OracleRecord& record);

/// The parts of `record` that go into the trace; the mass is the method's own.
void keepOracle(const OracleRecord& record, SelectionRecord& selection);

} // namespace kvscope
