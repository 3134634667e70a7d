#include "profiler/read/own_views.h"

#include "base/error.h"
#include "resources/resources.h"

#include <fmt/format.h>
#include <string>
#include <string_view>

namespace kvscope {
namespace {

bool isOrdinaryTable(Connection& connection, std::string_view name) {
    Statement find(connection, "SELECT 1 FROM main.sqlite_schema WHERE type='table' AND rootpage > 0 AND name=?");
    return find.bind(1, name).step();
}

/// A table that grew: columns that an older trace lacks are NULL in a view that takes the table's place.
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

/// A column with texts that are shown and kept as a whole.
struct TextColumn {
    const char *table, *column;
};
constexpr TextColumn kTexts[] = {{"text", "value"},     {"note", "text"},           {"run_meta", "value"},
                                 {"health", "error"},   {"span_detail", "args"},    {"request", "class"},
                                 {"request", "reason"}, {"iteration", "limited_by"}};

bool hasLongText(Connection& connection, const TextColumn& text) {
    Statement find(connection, fmt::format("SELECT 1 FROM main.{} WHERE length({}) > {} LIMIT 1", text.table,
                                           text.column, kLongestName));
    return find.step();
}

/// All columns of a table as the file has them, but for this one, which is cut where it is too long. Empty: the table
/// has no such column.
std::string columnsOf(Connection& connection, const TextColumn& text) {
    Statement names(connection, "SELECT name FROM pragma_table_info(?, 'main')");
    names.bind(1, std::string_view(text.table));
    std::string columns;
    bool found = false;
    while (names.step()) {
        std::string name = "\"";
        for (const char letter : names.text(0)) name += letter == '"' ? std::string(2, letter) : std::string(1, letter);
        name += '"';
        columns += columns.empty() ? "" : ", ";
        if (names.text(0) != text.column) {
            columns += name;
            continue;
        }
        found = true;
        columns += fmt::format("CASE WHEN length({0}) > {1} THEN substr({0}, 1, {1}) || '…' ELSE {0} END AS {0}", name,
                               kLongestName);
    }
    return found ? columns : std::string();
}

/// Hides a table that holds a name of megabytes behind a view that cuts the name: views, tables and pictures copy names
/// many times.
void cutLongTexts(Connection& connection) {
    std::string sql;
    for (const TextColumn& text : kTexts) {
        if (!isOrdinaryTable(connection, text.table)) continue;
        const std::string columns = columnsOf(connection, text);
        if (!columns.empty() && hasLongText(connection, text))
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
