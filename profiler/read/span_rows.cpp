#include "profiler/read/span_rows.h"

#include "profiler/format/span_name.h"
#include "profiler/import/import.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>

namespace kvscope {
namespace {

constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min(),
                       kLast = std::numeric_limits<std::int64_t>::max();

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

/// Ids of an import's spans that begin at this time.
std::pair<std::int64_t, std::int64_t> importedAt(Connection& connection, std::int64_t ns) {
    const std::int64_t end = std::min(connection.integer("SELECT max(id) FROM span"), kLast - 1);
    Statement start(connection, "SELECT start_ns FROM span WHERE id >= ? ORDER BY id LIMIT 1");
    const auto firstNotBefore = [&](std::int64_t time) {
        std::int64_t low = 1, high = end + 1;
        while (low < high) {
            const std::int64_t middle = low + (high - low) / 2;
            start.bind(1, middle);
            const bool before = start.step() && start.int64(0) < time;
            start.reset();
            if (before)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    };
    return {firstNotBefore(ns), firstNotBefore(ns + 1) - 1};
}

} // namespace

bool SpanRows::readOn(const TraceReader& reader, int rows) {
    const auto& inside = ReaderAccess::of(reader);
    const auto hasAny = [&](const char* table, const char* sql) {
        return inside.hasTable(table) && Statement(*inside.connection, sql).step();
    };
    const bool flows = hasAny("flow", "SELECT 1 FROM flow LIMIT 1");
    // Nothing can be asked that needs the rows.
    if (!flows && !hasAny("span_detail", "SELECT 1 FROM span_detail LIMIT 1")) return true;
    std::int64_t left = rows;
    const auto read = [&](Table& table, const char* sql) {
        Statement statement(*inside.connection, sql);
        {
            const std::lock_guard lock(mutex_);
            statement.bindAll(table.last, run_, left);
        }
        std::vector<std::int64_t> ids, values; // filled without the mutex, so that no other thread waits for the file
        while (statement.step()) {
            ids.push_back(statement.int64(0));
            for (std::size_t i = 0; i < table.columns.size(); ++i) values.push_back(statement.int64(1 + int(i)));
        }
        left -= std::int64_t(ids.size());
        const std::lock_guard lock(mutex_);
        for (std::size_t row = 0; row < ids.size(); ++row) {
            if (ids[row] <= table.last) continue; // somebody else has read it meanwhile
            table.last = ids[row];
            for (std::size_t i = 0; i < table.columns.size(); ++i)
                table.columns[i].add(ids[row], values[row * table.columns.size() + i]);
        }
    };
    read(spans_, "SELECT id, start_ns FROM span WHERE id > ? AND run_id = ? ORDER BY id LIMIT ?");
    if (left > 0 && flows)
        read(flows_, "SELECT id, from_span, to_span FROM flow WHERE id > ? AND run_id = ? ORDER BY id LIMIT ?");
    return left > 0;
}

SpanRows::Ranges SpanRows::rangesOf(const Table& table, std::size_t column, std::int64_t value) const {
    const std::lock_guard lock(mutex_);
    Ranges ranges = table.columns[column].find(value);
    if (table.last < kLast) ranges.emplace_back(table.last == kFirst ? kFirst : table.last + 1, kLast);
    return ranges;
}

std::optional<std::int64_t> SpanRows::spanAt(const TraceReader& reader, const SpanPlace& place) const {
    Connection& connection = *ReaderAccess::of(reader).connection;
    const auto track = textId(connection, place.track);
    if (!track) return std::nullopt; // a span of the engine: its steps have no rows here
    Ranges ranges;
    if (isImported(connection, run_)) ranges.push_back(importedAt(connection, place.startNs));
    for (const auto& range : rangesOf(spans_, 0, place.startNs)) ranges.push_back(range);
    Statement rows(connection, fmt::format("SELECT s.id FROM span s CROSS JOIN text n ON n.id = s.name {}"
                                           " WHERE s.id BETWEEN ? AND ? AND s.start_ns = ? AND s.duration_ns = ?"
                                           " AND s.run_id = ? AND s.depth = ? AND s.track = ? AND {} = ? LIMIT 1",
                                           kStageJoin, kShownName));
    for (const auto& [first, last] : ranges) {
        rows.bindAll(first, last, place.startNs, place.durationNs, run_, place.depth, *track,
                     std::string_view(place.name));
        if (rows.step()) return rows.int64(0);
        rows.reset();
    }
    return std::nullopt;
}

std::vector<SpanRows::Flow> SpanRows::flowsOf(const TraceReader& reader, std::int64_t span, std::size_t most) const {
    Connection& connection = *ReaderAccess::of(reader).connection;
    std::vector<Flow> flows;
    for (const bool leaves : {true, false}) {
        Statement rows(connection, leaves ? "SELECT to_span FROM flow WHERE id BETWEEN ? AND ? AND run_id = ?"
                                            " AND from_span = ? ORDER BY id LIMIT ?"
                                          : "SELECT from_span FROM flow WHERE id BETWEEN ? AND ? AND run_id = ?"
                                            " AND to_span = ? ORDER BY id LIMIT ?");
        std::size_t left = most;
        for (const auto& [first, last] : rangesOf(flows_, leaves ? 0 : 1, span)) {
            rows.bindAll(first, last, run_, span, std::int64_t(left));
            for (; left > 0 && rows.step(); --left) flows.push_back({leaves, rows.int64(0)});
            rows.reset();
        }
    }
    return flows;
}

std::size_t SpanRows::memoryBytes() const {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const Table* table : {&spans_, &flows_})
        for (const RowLookup& column : table->columns) bytes += column.memoryBytes();
    return bytes;
}

} // namespace kvscope
