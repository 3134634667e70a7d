#include "profiler/read/own_views.h"

#include "base/error.h"
#include "resources/resources.h"

#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {
namespace {

bool isOrdinaryTable(Connection& connection, std::string_view name) {
    Statement find(connection, "SELECT 1 FROM main.sqlite_schema WHERE type='table' AND rootpage > 0 AND name=?");
    return find.bind(1, name).step();
}

/// SQL for a view that takes the place of table span where an older trace lacks columns of it; these are NULL in the
/// view. Empty: the table has all columns.
std::string viewOfOlderSpans(Connection& connection) {
    const auto column = [&](std::string_view name) {
        Statement find(connection, "SELECT 1 FROM pragma_table_info('span') WHERE schema = 'main' AND name = ?");
        return find.bind(1, name).step();
    };
    const bool stage = column("stage"), bytes = column("bytes");
    if (stage && bytes) return {};
    return std::string("CREATE TEMP VIEW span AS SELECT id, run_id, step, layer, kind, track, name, start_ns,"
                       " duration_ns, depth, ") +
           (stage ? "stage" : "NULL AS stage") + (bytes ? ", bytes" : ", NULL AS bytes") + " FROM main.span;\n";
}

/// The columns of a table whose texts readers show and keep in memory whole.
struct TextColumns {
    const char* table;
    std::vector<const char*> columns;
};
const std::vector<TextColumns>& texts() {
    static const std::vector<TextColumns> all{{"run",
                                               {"name", "created_utc", "model", "method", "params_json", "backend",
                                                "device", "link", "timing", "level", "status", "status_message"}},
                                              {"text", {"value"}},
                                              {"note", {"text"}},
                                              {"run_meta", {"key", "value"}},
                                              {"health", {"program", "error"}},
                                              {"span_detail", {"args"}},
                                              {"request", {"class", "status", "reason", "external_id"}},
                                              {"request_span", {"state"}},
                                              {"iteration", {"limited_by"}},
                                              {"row_event", {"kind"}}};
    return all;
}

/// SQL for such a column, cut where a text is too long. Parameters are one JSON document and are dropped instead,
/// because half of one cannot be read.
std::string cut(std::string_view column, std::string_view quoted) {
    if (column == "params_json")
        return fmt::format("CASE WHEN length({0}) > {1} THEN '{{}}' ELSE {0} END AS {0}", quoted, kLongestParameters);
    return fmt::format("CASE WHEN length({0}) > {1} THEN substr({0}, 1, {1}) || '…' ELSE {0} END AS {0}", quoted,
                       kLongestName);
}

/// SQL for all columns of a table, with long texts cut, and NULL in place of those that an older trace lacks. Empty: no
/// text is too long, and the table has all columns.
std::string columnsOf(Connection& connection, const TextColumns& of) {
    Statement names(connection, "SELECT name FROM pragma_table_info(?, 'main')");
    names.bind(1, std::string_view(of.table));
    std::string columns, tooLong;
    std::vector<std::string> missing;
    if (of.table == std::string_view("request")) missing = {"external_id", "first_step", "last_step"};
    while (names.step()) {
        std::erase(missing, names.text(0));
        std::string name = "\"";
        for (const char letter : names.text(0)) name += letter == '"' ? std::string(2, letter) : std::string(1, letter);
        name += '"';
        columns += columns.empty() ? "" : ", ";
        if (std::find(of.columns.begin(), of.columns.end(), names.text(0)) == of.columns.end()) {
            columns += name;
            continue;
        }
        columns += cut(names.text(0), name);
        tooLong += fmt::format("{}length({}) > {}", tooLong.empty() ? "" : " OR ", name, kLongestName);
    }
    for (const std::string& column : missing) columns += ", NULL AS " + column;
    if (!missing.empty()) return columns;
    if (tooLong.empty()) return {};
    Statement find(connection, fmt::format("SELECT 1 FROM main.{} WHERE {} LIMIT 1", of.table, tooLong));
    return find.step() ? columns : std::string();
}

/// Hides a table that holds a name of megabytes behind a view that cuts the name: views, tables and pictures copy names
/// many times. Likewise a table of an older trace that lacks columns.
void cutLongTexts(Connection& connection) {
    std::string sql;
    for (const TextColumns& text : texts()) {
        if (!isOrdinaryTable(connection, text.table)) continue;
        if (const std::string columns = columnsOf(connection, text); !columns.empty())
            sql += fmt::format("CREATE TEMP VIEW {0} AS SELECT {1} FROM main.{0};\n", text.table, columns);
    }
    if (!sql.empty()) connection.execute(sql);
}

} // namespace

void useOwnViews(Connection& connection) {
    const auto schema = resources::text("sql/schema.sql");
    if (!schema) throw Error(ErrorKind::Unsupported, "this program was built without sql/schema.sql", "build it again");
    const std::string_view text(*schema);
    constexpr std::string_view kCreate = "CREATE ", kTable = "TABLE ", kEnd = ";\n";
    std::string sql = viewOfOlderSpans(connection);
    for (std::size_t at = 0; (at = text.find("\nCREATE ", at)) != std::string_view::npos;) {
        const std::size_t begin = at + 1 + kCreate.size(), end = text.find(kEnd, begin);
        const std::string_view rest = text.substr(begin, end - begin); // TABLE name (... or VIEW name AS ...
        at = end;
        const std::size_t blank = rest.find(' ') + 1;
        const std::string_view name = rest.substr(blank, rest.find_first_of(" \n", blank) - blank);
        if (rest.starts_with(kTable) && isOrdinaryTable(connection, name)) continue;
        ((sql += "CREATE TEMP ") += rest) += ";\n";
    }
    connection.execute(sql);
    cutLongTexts(connection);
}

} // namespace kvscope
