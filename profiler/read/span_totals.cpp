#include "profiler/read/span_totals.h"

#include "base/utf8.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {

SpanTotals spanTotals(const TraceReader& reader, int runId) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    SpanTotals totals;
    bool first = true;
    Statement rows(
        connection,
        "SELECT t.value, count(*), CAST(total(CASE s.depth WHEN 0 THEN s.duration_ns ELSE 0 END) AS INTEGER),"
        " min(s.start_ns), max(s.start_ns + s.duration_ns)"
        " FROM span s JOIN text t ON t.id = s.track WHERE s.run_id = ? GROUP BY s.track ORDER BY 1");
    rows.bind(1, runId);
    while (rows.step()) {
        totals.tracks.push_back({toValidUtf8(rows.text(0)), rows.int64(1), rows.int64(2)});
        totals.spans += rows.int64(1);
        totals.firstNs = first ? rows.int64(3) : std::min(totals.firstNs, rows.int64(3));
        totals.lastNs = first ? rows.int64(4) : std::max(totals.lastNs, rows.int64(4));
        first = false;
    }
    const auto count = [&](const char* table) -> std::int64_t { // traces from before these tables have none
        if (connection.integer(
                fmt::format("SELECT count(*) FROM sqlite_schema WHERE type='table' AND name='{}'", table)) == 0)
            return 0;
        return connection.integer(fmt::format("SELECT count(*) FROM {} WHERE run_id = {}", table, runId));
    };
    totals.counterValues = count("gauge");
    totals.flows = count("flow");
    return totals;
}

} // namespace kvscope
