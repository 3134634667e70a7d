#include "profiler/read/own_views.h"

#include "base/error.h"
#include "resources/resources.h"

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
}

} // namespace kvscope
