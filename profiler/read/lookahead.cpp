#include "profiler/read/lookahead.h"

#include "profiler/read/reader_impl.h"

namespace kvscope {

std::optional<LookaheadTotals> lookaheadTotals(const TraceReader& reader, int runId) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    // Reads a table only. A view of the name does not count, because a view in a foreign file could run for ever.
    Statement there(connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name='lookahead'");
    if (!there.step()) return std::nullopt;
    Statement rows(connection, "SELECT count(*), sum(predicted), sum(used), sum(wasted), sum(late), sum(stale)"
                               " FROM lookahead WHERE id BETWEEN ?1 << 55 AND (?1 << 55) | 0x7FFFFFFFFFFFFF");
    rows.bind(1, runId);
    if (!rows.step() || rows.int64(0) == 0) return std::nullopt;
    LookaheadTotals totals{rows.int64(0), rows.int64(1), rows.int64(2), rows.int64(3), rows.int64(4), {}};
    if (!rows.isNull(5)) totals.stale = rows.int64(5);
    return totals;
}

} // namespace kvscope
