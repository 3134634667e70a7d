#include "profiler/read/recorded_flows.h"

#include "profiler/read/reader_impl.h"
#include "profiler/read/span_row.h"

namespace kvscope {

std::vector<RecordedFlow> recordedFlows(const TraceReader& reader, int runId, const SpanPlace& span) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    std::vector<RecordedFlow> flows;
    Statement there(connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name='flow'");
    if (!there.step()) return flows;
    Statement any(connection, "SELECT 1 FROM flow WHERE run_id = ? LIMIT 1");
    any.bind(1, runId);
    if (!any.step()) return flows; // saves the search for the span
    const auto found = spanRow(connection, runId, span);
    if (!found) return flows;
    const std::int64_t id = *found;
    Statement rows(connection,
                   "SELECT f.from_span = ?1, t.value, n.value, s.start_ns, s.duration_ns, s.depth FROM flow f"
                   " JOIN span s ON s.id = CASE WHEN f.from_span = ?1 THEN f.to_span ELSE f.from_span END"
                   " JOIN text t ON t.id = s.track JOIN text n ON n.id = s.name"
                   " WHERE f.run_id = ?2 AND (f.from_span = ?1 OR f.to_span = ?1) ORDER BY s.start_ns, s.id LIMIT 64");
    rows.bindAll(id, runId);
    while (rows.step())
        flows.push_back(
            {rows.int64(0) != 0,
             {std::string(rows.text(1)), std::string(rows.text(2)), rows.int64(3), rows.int64(4), int(rows.int64(5))}});
    return flows;
}

} // namespace kvscope
