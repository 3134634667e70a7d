// Inside of TraceReader, shared by the files that implement it.
#pragma once

#include "profiler/read/open_trace.h"
#include "profiler/read/trace_reader.h"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvscope {

/// Steps first..last, both included; empty when last < first.
struct StepRange {
    int first = 0, last = -1;
    int count() const { return last < first ? 0 : last - first + 1; }
};

struct TraceReader::Impl {
    std::string path;
    std::unique_ptr<TemporaryFolder> copy; // outlives the connection into it
    std::unique_ptr<Connection> connection;

    [[noreturn]] void damaged(const std::string& what) const; // Error(BadInput)
    RunRow runRow(const Statement& row) const;                // all but its steps
    void readMeta(RunRow& run) const;                         // what run_meta holds, and what the run knows
    RunRow known(int runId) const; // with its steps. @throws Error(BadInput) if there is no such run
    int stepCount(int runId) const;
    int afterLast(const char* table, int runId) const;
    /// The first recorded step from `step` on, or `step` where none follows: steps may be numbered with any gaps.
    int nextStep(int runId, int step) const;
    /// The last recorded step before `step`; -1: none.
    int previousStep(int runId, int step) const;
    /// [first, last] cut to what is there; last < 0: to the end.
    StepRange range(int runId, int first, int last) const;
    /// Makes `into` a row with the columns id, selected, kept, hits, misses, mass, blocks, keeping its memory.
    /// @throws Error(BadInput) if the blob is damaged
    void readSelection(const Statement& row, Knowledge knows, SelectionRow& into) const;
    /// Calls `visit` with each selection of one head in steps first..last, in their order; the row is lent for the
    /// call.
    void eachSelection(int runId, int layer, int sequence, int kvHead, int firstStep, int lastStep,
                       const std::function<void(SelectionRow& row)>& visit) const;
    /// SQL for the number that a metric averages over selections `c`; "NULL" for other metrics, and where the trace has
    /// none.
    std::string meanedColumn(Metric metric) const;
    /// SQL for columns of selections `c`: id, selected, kept, hits, misses, meanedColumn(), whether the bytes are those
    /// of the misses.
    std::string headColumns(Metric metric, std::int64_t blockBytes) const;
    /// Finds how far a run has come: RunRow::steps, RunRow::iterations and RunRow::prompts.
    void countSteps(RunRow& run) const;
    bool hasTable(std::string_view name) const; // tables that came later are missing in older traces
    /// A matrix of NaN for these steps. @throws Error(Unsupported) when it would not fit into memory
    StepMatrix emptyMatrix(int runId, int firstStep, int lastStep, int rows) const;
};

/// Gives other files of the profiler access to the reader's connection, for reads that are too special for TraceReader.
struct ReaderAccess {
    using Impl = TraceReader::Impl;
    static const Impl& of(const TraceReader& reader) { return *reader.impl_; }
};

} // namespace kvscope
