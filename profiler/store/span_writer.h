// Writes the rows of spans, and the flows from calls to what these started.
#pragma once

#include "core/trace/trace_sink.h"
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
    void beginRun() { calls_.clear(); }
    /// Inserts the rows in the open transaction. @throws Error(Storage)
    void add(int run, const std::vector<SpanRecord>& spans, TextTable& texts);
    /// Resets the statements that an error has interrupted.
    void reset();

private:
    void addFlows(int run, const std::vector<SpanRecord>& spans, std::int64_t first);

    RowInserter spans_, flows_;
    std::int64_t last_ = 0; // id of the newest span
    RecentCalls calls_;
};

} // namespace kvscope
