// The forwards of block-diffusion runs, one JSON object each, with the keys that tests/golden/losa/README.md explains.
#pragma once

#include "profiler/export/export.h"
#include "profiler/export/line_writer.h"
#include "profiler/sqlite/sqlite.h"

namespace kvscope {

/// Steps ascending, in each the sequences. A key is left out where a forward has no such value: tokens, confidence and
/// written of a clean one, active, pages and density of a layer that was dense, delta of a block's first forward; pages
/// and delta also where the run was recorded at level counters, which the note then says. delta_keys and delta_values,
/// [block] like delta, are there where the run has table denoise_change.
ExportResult exportDenoising(Connection& connection, LineWriter& writer, const ExportOptions& options);

} // namespace kvscope
