// The rows of a run's spans and arrows, found again by where a span lies.
#pragma once

#include "profiler/read/row_lookup.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// Enough to find a row of `span` again.
struct SpanPlace {
    std::string track, name;
    std::int64_t startNs = 0, durationNs = 0;
    int depth = 0;
    bool operator==(const SpanPlace&) const = default;
};

/// Finds rows quickly in the part of the tables that it has read. It searches the other part row by row, which takes as
/// long as reading it. Every thread may ask, with a reader of its own.
class SpanRows {
public:
    explicit SpanRows(int runId) : run_(runId) {}
    /// Reads about so many rows more, in the background. @return true: that is all there is at this moment.
    /// @throws Error(BadInput | Cancelled)
    bool readOn(const TraceReader& reader, int rows);

    /// span.id; absent: there is no such span. Imports number their spans by time, so they are found at once.
    std::optional<std::int64_t> spanAt(const TraceReader& reader, const SpanPlace& place) const;
    /// Some of the rows of `flow` from (or to) this span, in their order: the span at the other end.
    struct Flow {
        bool leaves = false;
        std::int64_t other = 0;
    };
    std::vector<Flow> flowsOf(const TraceReader& reader, std::int64_t span, std::size_t most) const;
    std::size_t memoryBytes() const;

private:
    using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
    struct Table {
        std::int64_t last = std::numeric_limits<std::int64_t>::min(); // id of the last row read
        std::vector<RowLookup> columns;
    };
    Ranges rangesOf(const Table& table, std::size_t column, std::int64_t value) const;

    const int run_;
    mutable std::mutex mutex_;
    Table spans_{.columns = std::vector<RowLookup>(1)}; // start_ns
    Table flows_{.columns = std::vector<RowLookup>(2)}; // from_span, to_span
};

} // namespace kvscope
