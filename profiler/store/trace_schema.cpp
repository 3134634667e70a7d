#include "profiler/store/trace_schema.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "resources/resources.h"

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope::trace {
namespace {

[[noreturn]] void refuseFile(const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::Storage, message, hint);
}

/// Columns that came later than their table.
struct LaterColumns {
    const char* table;
    std::vector<std::pair<const char*, const char*>> columns; // name, type
    std::vector<const char*> views;                           // that show them
};
const std::vector<LaterColumns>& laterColumns() {
    static const std::vector<LaterColumns> all{
        {"span", {{"stage", "INTEGER REFERENCES text(id)"}, {"bytes", "INTEGER"}}, {"v_span", "v_kernel", "v_flow"}},
        {"request", {{"external_id", "TEXT"}, {"first_step", "INTEGER"}, {"last_step", "INTEGER"}}, {"v_request"}}};
    return all;
}

void addColumns(Connection& connection, const LaterColumns& later) {
    std::string sql;
    for (const auto& [column, type] : later.columns) {
        Statement find(connection, "SELECT 1 FROM pragma_table_info(?) WHERE name=?");
        find.bind(1, std::string_view(later.table));
        find.bind(2, std::string_view(column));
        if (!find.step()) sql += fmt::format("ALTER TABLE {} ADD COLUMN {} {};", later.table, column, type);
    }
    if (sql.empty()) return;
    const std::string schema(resources::text("sql/schema.sql").value_or(""));
    for (const char* view : later.views) {
        const std::size_t begin = schema.find(fmt::format("CREATE VIEW {} ", view)), end = schema.find(";\n", begin);
        sql += fmt::format("DROP VIEW IF EXISTS {};", view) + schema.substr(begin, end + 1 - begin);
    }
    connection.execute("BEGIN IMMEDIATE;" + sql + "COMMIT");
}

} // namespace

void createSchema(Connection& connection) {
    const auto schema = resources::text("sql/schema.sql");
    if (!schema) throw Error(ErrorKind::Unsupported, "this program was built without sql/schema.sql", "build it again");
    connection.execute("PRAGMA page_size=16384");
    // One transaction: a process killed here leaves an empty file, never half a schema.
    connection.execute(
        fmt::format("BEGIN EXCLUSIVE; PRAGMA application_id={}; PRAGMA user_version={};", kApplicationId, kVersion));
    connection.execute(std::string(*schema));
    connection.execute("COMMIT");
}

void verifySchema(Connection& connection) {
    if (connection.integer("PRAGMA application_id") != kApplicationId)
        refuseFile(fmt::format("{} exists and is not a KVScope trace", connection.path()), "choose another name");
    const std::int64_t version = connection.integer("PRAGMA user_version");
    if (version != kVersion)
        refuseFile(
            fmt::format("{} has trace format {}, this program writes format {}", connection.path(), version, kVersion),
            version > kVersion ? "update KVScope or record to another file" : "record to another file");
    // Rows are inserted into tables by name. A file with a view or a virtual table of such a name is refused, because
    // inserting into it would run what the maker of the file wrote.
    const std::string schema(resources::text("sql/schema.sql").value_or(""));
    constexpr std::string_view kCreate = "CREATE TABLE ";
    for (std::size_t at = schema.find(kCreate); at != std::string::npos; at = schema.find(kCreate, at)) {
        at += kCreate.size();
        const std::string_view name = std::string_view(schema).substr(at, schema.find(' ', at) - at);
        Statement find(connection, "SELECT 1 FROM sqlite_schema WHERE name=? AND (type<>'table' OR rootpage=0)");
        find.bind(1, name);
        if (find.step())
            refuseFile(fmt::format("{} is not a trace to record into: its {} is not an ordinary table",
                                   connection.path(), name),
                       "record to another file");
    }
}

void completeSchema(Connection& connection) {
    const std::string schema(resources::text("sql/schema.sql").value_or(""));
    for (const char* what : {"TABLE counter",
                             "VIEW v_counter",
                             "TABLE clock_sync",
                             "VIEW v_clock_sync",
                             "TABLE lookahead",
                             "VIEW v_lookahead",
                             "TABLE oracle",
                             "VIEW v_oracle",
                             "TABLE span_detail",
                             "TABLE gauge",
                             "VIEW v_gauge",
                             "TABLE flow",
                             "VIEW v_flow",
                             "TABLE run_meta",
                             "TABLE denoise",
                             "TABLE denoise_token",
                             "TABLE denoise_layer",
                             "VIEW v_denoise",
                             "VIEW v_denoise_token",
                             "VIEW v_denoise_layer",
                             "TABLE request",
                             "TABLE request_span",
                             "TABLE iteration",
                             "TABLE member",
                             "VIEW v_request",
                             "VIEW v_request_span",
                             "VIEW v_iteration",
                             "VIEW v_member",
                             "TABLE row_event",
                             "VIEW v_row_event",
                             "VIEW v_served_selection",
                             "TABLE denoise_tile",
                             "VIEW v_denoise_tile",
                             "TABLE denoise_change",
                             "VIEW v_denoise_change",
                             "TABLE prompt_piece",
                             "VIEW v_step_kind",
                             "VIEW v_prompt_piece"}) {
        const std::string name = std::string(what).substr(std::string_view(what).find(' ') + 1);
        Statement find(connection, "SELECT 1 FROM sqlite_schema WHERE name=?");
        find.bind(1, std::string_view(name));
        if (find.step()) continue;
        find.reset();
        const std::size_t begin = schema.find(fmt::format("CREATE {} ", what)), end = schema.find(";\n", begin);
        connection.execute(schema.substr(begin, end + 1 - begin));
    }
    for (const LaterColumns& later : laterColumns()) addColumns(connection, later);
}

} // namespace kvscope::trace
