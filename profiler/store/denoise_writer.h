// Writes the rows of denoising steps: forwards, their tokens, and what every KV head attended to.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/sqlite/row_inserter.h"

namespace kvscope {

class DenoiseWriter {
public:
    DenoiseWriter() = default;
    /// The connection must outlive this object, and have the tables.
    explicit DenoiseWriter(Connection& connection);

    /// Inserts the rows of a step that has forwards, in the open transaction. group: query heads of a KV head.
    /// @throws Error(Storage)
    void add(int run, int group, const StepRecord& record);
    /// Resets the statements that an error has interrupted.
    void reset();

private:
    void addForwards(int run, const StepRecord& record);
    void addLayers(int run, const StepRecord& record);
    void addTileRows(int run, int group, const StepRecord& record);
    void addKvChanges(int run, const StepRecord& record);

    RowInserter forwards_, tokens_, layers_, tileRows_, kvChanges_;
};

} // namespace kvscope
