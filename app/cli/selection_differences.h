// kvscope-cli compare --differences: the blocks that two runs select differently, one a line.
#pragma once

#include "base/progress.h"
#include "profiler/compare/selection_gaps.h"
#include "profiler/read/trace_reader.h"

#include <string>

namespace kvscope::cli {

/// Writes CSV, or JSON lines where the path ends in .jsonl, with step, layer, sequence, KV head, block, the run that
/// selected it, its score, and the gap to the lowest score that this run chose there.
/// @throws Error(BadInput): ids that cannot be compared; Error(Storage | Cancelled)
GapSums writeSelectionDifferences(const TraceReader& a, int runA, const TraceReader& b, int runB,
                                  const std::string& path, const Progress& progress);

} // namespace kvscope::cli
