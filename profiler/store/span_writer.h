// Writes the rows of spans, and the flows from calls to what these started.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/format/engine_event.h"
#include "profiler/sqlite/row_inserter.h"
#include "profiler/store/recent_calls.h"
#include "profiler/store/text_table.h"

#include <cstdint>
#include <vector>

namespace kvscope {

class SpanWriter {
public:
    SpanWriter() = default;
    /// The connection must outlive this object, and have the tables.
    explicit SpanWriter(Connection& connection);

    /// The next spans are those of another run.
    void beginRun() {
        calls_.clear();
        beforeRun_ = last_;
    }
    /// Inserts the rows in the open transaction. @throws Error(Storage)
    void add(int run, const std::vector<SpanRecord>& spans, TextTable& texts);
    /// Likewise of spans with numbers, and what another tool said of them.
    void add(int run, const std::vector<EngineSpan>& spans, TextTable& texts);
    /// Inserts a flow between numbered spans, unless one of them is not in the file.
    void add(int run, const EngineFlow& flow);
    /// Resets the statements that an error has interrupted.
    void reset();

private:
    void addFlows(int run, const std::vector<SpanRecord>& spans, std::int64_t first);

    RowInserter spans_, flows_, details_;
    Statement flowWhereBoth_;
    std::int64_t last_ = 0;      // id of the newest span
    std::int64_t beforeRun_ = 0; // id of the newest span when the run began: a numbered span has its number more
    RecentCalls calls_;
};

} // namespace kvscope
