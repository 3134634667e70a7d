// Several traces as one: a run per run of each, ranks side by side on one clock with the numbers of the whole model.
#pragma once

#include "base/progress.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

struct MergedRun {
    int runId = 0; // in the new trace
    std::string file, name;
    int oldRunId = 0;
    int rank = -1;                         // -1: the run has none
    std::int64_t addedNs = 0, errorNs = 0; // to its times, and how far that may be wrong
    std::string clock;                     // by which: ClockOffset::by; empty: not shifted
};

struct MergeResult {
    std::vector<MergedRun> runs;
    std::vector<std::string> remarks; // one sentence each: a rank that is missing, a clock that is off, a file left out
};

/// Writes a new trace with copies of all runs of the inputs, which are traces and folders of traces. Ranks of one group
/// (rank_group.h) follow each other by rank; their times count from one moment (clock_offset.h), which never makes one
/// negative, and where a rank numbers its KV heads or layers from 0 (keys head_first and layer_first of run_meta), they
/// get the model's numbers. The file appears when it is complete.
/// @throws Error(BadInput): no run, too many, OUT among the inputs, an input that is no trace; Error(Storage);
/// Error(Cancelled). A file of a folder that cannot be read is left out with a remark.
MergeResult mergeTraces(const std::vector<std::string>& inputs, const std::string& out, bool overwrite,
                        const Progress& progress = {}, const std::stop_token& stop = {});

} // namespace kvscope
