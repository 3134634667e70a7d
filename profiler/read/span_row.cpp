#include "profiler/read/span_row.h"

#include "profiler/import/import.h"
#include "profiler/store/sqlite.h"

#include <algorithm>
#include <limits>
#include <string_view>

namespace kvscope {
namespace {

bool isImported(Connection& connection, int runId) {
    Statement run(connection, "SELECT backend FROM run WHERE run_id = ?");
    run.bind(1, runId);
    return run.step() && run.text(0) == kImported;
}

std::optional<std::int64_t> textId(Connection& connection, const std::string& value) {
    Statement row(connection, "SELECT id FROM text WHERE value = ?");
    row.bind(1, std::string_view(value));
    if (!row.step()) return std::nullopt;
    return row.int64(0);
}

std::optional<std::int64_t> find(Connection& connection, int runId, const SpanPlace& span, std::int64_t first,
                                 std::int64_t last) {
    const auto track = textId(connection, span.track), name = textId(connection, span.name);
    if (!track || !name) return std::nullopt; // a span of the engine: its steps have no rows here
    Statement rows(connection, "SELECT id FROM span WHERE id BETWEEN ? AND ? AND start_ns = ? AND duration_ns = ?"
                               " AND run_id = ? AND depth = ? AND track = ? AND name = ? LIMIT 1");
    rows.bindAll(first, last, span.startNs, span.durationNs, runId, span.depth, *track, *name);
    if (!rows.step()) return std::nullopt;
    return rows.int64(0);
}

} // namespace

std::optional<std::int64_t> spanRow(Connection& connection, int runId, const SpanPlace& span) {
    constexpr auto kLast = std::numeric_limits<std::int64_t>::max();
    const std::int64_t end = std::min(connection.integer("SELECT max(id) FROM span"), kLast - 1);
    if (isImported(connection, runId)) {
        Statement start(connection, "SELECT start_ns FROM span WHERE id >= ? ORDER BY id LIMIT 1");
        const auto firstNotBefore = [&](std::int64_t ns) {
            std::int64_t low = 1, high = end + 1;
            while (low < high) {
                const std::int64_t middle = low + (high - low) / 2;
                start.bind(1, middle);
                const bool before = start.step() && start.int64(0) < ns;
                start.reset();
                if (before)
                    low = middle + 1;
                else
                    high = middle;
            }
            return low;
        };
        if (const auto found =
                find(connection, runId, span, firstNotBefore(span.startNs), firstNotBefore(span.startNs + 1) - 1))
            return found;
    }
    return find(connection, runId, span, std::numeric_limits<std::int64_t>::min(),
                kLast); // another program's rows may be in any order
}

} // namespace kvscope
