#include "profiler/read/span_detail.h"

#include "profiler/read/reader_impl.h"

#include <nlohmann/json.hpp>

namespace kvscope {

bool hasSpanDetails(const TraceReader& reader) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    Statement there(connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name='span_detail'");
    return there.step() && connection.integer("SELECT count(*) FROM (SELECT 1 FROM span_detail LIMIT 1)") > 0;
}

SpanDetail spanDetail(const TraceReader& reader, int runId, const SpanPlace& span, const SpanRows* rows) {
    SpanDetail detail;
    if (!hasSpanDetails(reader)) return detail;
    Connection& connection = *ReaderAccess::of(reader).connection;
    const SpanRows unread(runId);
    const auto id = (rows ? *rows : unread).spanAt(reader, span);
    if (!id) return detail;
    Statement row(connection,
                  "SELECT t.value, d.args FROM span_detail d LEFT JOIN text t ON t.id = d.category WHERE d.id = ?");
    row.bind(1, *id);
    if (!row.step()) return detail;
    if (!row.isNull(0)) detail.category = row.text(0);
    if (row.isNull(1)) return detail;
    const std::string text(row.text(1));
    const auto args = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!args.is_object()) { // written by another program
        detail.args.emplace_back("args", text);
        return detail;
    }
    for (const auto& [key, value] : args.items())
        detail.args.emplace_back(
            key, value.is_string() ? value.get<std::string>()
                                   : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return detail;
}

} // namespace kvscope
