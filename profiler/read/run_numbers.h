// The numbers by which many runs are told apart at a glance: a line of a table of runs.
#pragma once

#include "profiler/read/summary.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <string>

namespace kvscope {

/// What is read of a run so far. A run that grows is read on from `nextStep`.
struct RunNumbers {
    SummarySums sums;   // of whole steps: the summary has no components and no locality
    int nextStep = 0;   // the first step that is not read
    std::string answer; // answersText(): "79930, correct"; empty: no prompt of the run asks for a fact
};

/// Reads at most `mostSteps` steps on, and the answer once all steps are read. @return whether all steps are read
/// @throws Error(BadInput) if there is no such run, Error(Storage | Cancelled)
bool extendRunNumbers(RunNumbers& numbers, const TraceReader& reader, const RunRow& run, int mostSteps);

/// Bytes from the host to the device per token that the counted decode steps fed, all sequences (RunSummary says which
/// steps are counted). NaN: not known.
double h2dBytesPerToken(const RunSummary& summary);

/// Block slots of the device tier in all layers, sequences and KV heads; 0: everything is resident; negative: not
/// known, so nothing is said of the device tier. A diffusion model's tokens have keys and values there before and after
/// they are written, so that the tokens written do not count what is there.
std::int64_t slotBlocksOf(const RunRow& run);

/// Device bytes that hold keys and values when the run ends: of the block slots of all layers, or of all tokens where
/// the run attends to everything and loads nothing. Weights, index and scratch memory are not in it. NaN: not known,
/// which is so for other runs without slots, whose methods may forget tokens or keep them by a rule of their own, and
/// for runs that serve, that denoise, whose selected units are parts of a block, or that have dropped steps.
double deviceKvBytes(const RunRow& run, const RunSummary& summary);

} // namespace kvscope
