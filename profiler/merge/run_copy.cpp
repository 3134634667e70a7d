#include "profiler/merge/run_copy.h"

#include "base/error.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <set>
#include <string_view>

namespace kvscope {
namespace {

/// A table whose key begins with the run's number, shifted left by `runShift`.
struct KeyedTable {
    const char* name;
    int runShift;
    int layerShift; // of the layer within the key; -1: the key has none
    bool hasHead;   // the key ends with a KV head
    std::vector<const char*> times;
};
const std::vector<KeyedTable>& keyedTables() {
    static const std::vector<KeyedTable> all{
        {"prompt", 55, -1, false, {}},
        {"step", 25, -1, false, {"start_ns"}},
        {"layer_step", 35, 0, false, {"start_ns"}},
        {"selection", 55, 20, true, {}},
        {"lookahead", 55, 20, true, {}},
        {"oracle", 55, 20, true, {}},
        {"token", 45, -1, false, {}},
        {"prompt_piece", 45, -1, false, {}},
        {"denoise", 45, -1, false, {}},
        {"denoise_token", 45, -1, false, {}},
        {"denoise_layer", 55, 20, true, {}},
        {"denoise_tile", 55, 20, true, {}},
        {"denoise_change", 55, 20, true, {}},
        {"request", 40, -1, false, {"arrival_ns", "first_sched_ns", "first_token_ns", "end_ns"}},
        {"request_span", 40, -1, false, {"start_ns", "end_ns"}},
        {"iteration", 25, -1, false, {"start_ns"}},
        {"member", 35, -1, false, {"token_ns"}},
        {"row_event", 40, -1, false, {"time_ns"}}};
    return all;
}

std::string quotedText(std::string_view text) {
    std::string quoted = "'";
    for (const char c : text)
        if (c == '\'')
            quoted += "''";
        else if (c != '\0')
            quoted += c;
    return quoted + "'";
}

/// The path as a URI of a file that is only read.
std::string readOnlyUri(const std::string& path) {
    std::string uri = "file:";
    for (const char c : std::filesystem::absolute(path).string())
        if (std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("/._-", c) != nullptr)
            uri += c;
        else
            uri += fmt::format("%{:02x}", unsigned(static_cast<unsigned char>(c)));
    return uri + "?mode=ro";
}

class Copier {
public:
    explicit Copier(Connection& into) : into_(into) {
        Statement tables(into_, "SELECT name FROM src.sqlite_schema WHERE type = 'table' AND rootpage > 0");
        while (tables.step()) tables_.emplace(tables.text(0));
        mapTexts();
        Statement last(into_, "SELECT coalesce(max(id), 0) FROM main.span");
        last.step();
        spans_ = last.int64(0);
        if (!tables_.contains("span")) return;
        Statement ids(into_, "SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM src.span");
        ids.step();
        if (ids.int64(0) < 0 || ids.int64(1) > std::int64_t(1) << 48)
            throw Error(ErrorKind::BadInput, "its spans have numbers that no recorder gives", "record it again");
    }

    void copy(const RunCopy& run) {
        copyRow(run);
        for (const KeyedTable& table : keyedTables()) copyKeyed(table, run);
        copyMeta(run);
        const std::string where = fmt::format("WHERE run_id = {} ORDER BY id", run.from);
        const std::string id = std::to_string(run.to);
        const std::string times = fmt::format("start_ns + {}", run.addNs);
        const std::string layer = fmt::format("iif(layer < 0, layer, layer + {})", run.layerFirst);
        copyTable("span",
                  {{"id", fmt::format("id + {}", spans_)},
                   {"run_id", id},
                   {"start_ns", times},
                   {"layer", layer},
                   {"track", mapped("track")},
                   {"name", mapped("name")},
                   {"stage", mapped("stage")}},
                  where);
        const std::string ofRun = fmt::format("WHERE id IN (SELECT id FROM src.span WHERE run_id = {})", run.from);
        if (tables_.contains("span"))
            copyTable("span_detail", {{"id", fmt::format("id + {}", spans_)}, {"category", mapped("category")}}, ofRun);
        copyTable("flow",
                  {{"id", "NULL"},
                   {"run_id", id},
                   {"from_span", fmt::format("from_span + {}", spans_)},
                   {"to_span", fmt::format("to_span + {}", spans_)}},
                  where);
        copyTable("counter", {{"id", "NULL"}, {"run_id", id}, {"start_ns", times}, {"track", mapped("track")}}, where);
        copyTable("gauge",
                  {{"id", "NULL"},
                   {"run_id", id},
                   {"time_ns", fmt::format("time_ns + {}", run.addNs)},
                   {"track", mapped("track")}},
                  where);
        copyTable("clock_sync",
                  {{"id", "NULL"},
                   {"run_id", id},
                   {"own_ns", fmt::format("own_ns + {}", run.addNs)},
                   {"clock", mapped("clock")}},
                  where);
        copyTable("note", {{"id", "NULL"}, {"run_id", id}, {"start_ns", times}}, where);
    }

private:
    using Expressions = std::map<std::string, std::string, std::less<>>; // [column] what it becomes

    std::vector<std::string> columnsOf(const char* schema, const char* table) {
        Statement rows(into_, fmt::format("SELECT name FROM pragma_table_info({}, '{}')", quotedText(table), schema));
        std::vector<std::string> columns;
        while (rows.step()) columns.emplace_back(rows.text(0));
        return columns;
    }

    /// Inserts the rows of the file's table; columns without an expression stay as they are.
    void copyTable(const char* table, const Expressions& become, const std::string& where) {
        if (!tables_.contains(table)) return;
        const std::vector<std::string> there = columnsOf("src", table);
        std::string columns, values;
        for (const std::string& column : columnsOf("main", table)) {
            if (std::find(there.begin(), there.end(), column) == there.end()) continue;
            const auto found = become.find(column);
            columns += (columns.empty() ? "" : ", ") + column;
            values += (values.empty() ? "" : ", ") + (found == become.end() ? column : found->second);
        }
        into_.execute(
            fmt::format("INSERT INTO main.{0} ({1}) SELECT {2} FROM src.{0} {3}", table, columns, values, where));
    }

    void copyKeyed(const KeyedTable& table, const RunCopy& run) {
        std::int64_t add = std::int64_t(run.to - run.from) * (std::int64_t(1) << table.runShift);
        if (table.layerShift >= 0) add += std::int64_t(run.layerFirst) << table.layerShift;
        if (table.hasHead) add += run.headFirst;
        Expressions become{{"id", fmt::format("id + {}", add)}};
        for (const char* time : table.times) become[time] = fmt::format("{} + {}", time, run.addNs);
        const std::int64_t low = std::int64_t(run.from) << table.runShift;
        const std::int64_t high = low | ((std::int64_t(1) << table.runShift) - 1);
        copyTable(table.name, become, fmt::format("WHERE id BETWEEN {} AND {} ORDER BY id", low, high));
    }

    void copyRow(const RunCopy& run) {
        const std::string where = fmt::format("WHERE run_id = {}", run.from), id = std::to_string(run.to);
        copyTable("run",
                  {{"run_id", id},
                   {"name", quotedText(run.name)},
                   {"kv_heads", std::to_string(run.kvHeads)},
                   {"layers", std::to_string(run.layers)},
                   {"query_heads", std::to_string(run.queryHeads)}},
                  where);
        copyTable("health", {{"run_id", id}}, where);
    }

    /// The numbers of a rank's heads and layers are the model's from now on, so the keys that said where they begin go.
    void copyMeta(const RunCopy& run) {
        if (tables_.contains("run_meta") &&
            columnsOf("src", "run_meta") == std::vector<std::string>{"run_id", "key", "value"})
            copyTable("run_meta", {{"run_id", std::to_string(run.to)}},
                      fmt::format("WHERE run_id = {} AND key NOT IN ({}, {})", run.from,
                                  quotedText(run_meta::kHeadFirst), quotedText(run_meta::kLayerFirst)));
        Statement insert(into_, "INSERT OR REPLACE INTO main.run_meta(run_id, key, value) VALUES (?,?,?)");
        for (const auto& [key, value] : run.meta)
            insert.bindAll(run.to, std::string_view(key), std::string_view(value)).run();
    }

    /// Adds the file's texts to the merged trace and makes a table of their numbers there: the same text has another
    /// number in every file.
    void mapTexts() {
        into_.execute("DROP TABLE IF EXISTS temp.text_number;"
                      "CREATE TEMP TABLE text_number(old INTEGER PRIMARY KEY, new INTEGER NOT NULL)");
        if (!tables_.contains("text")) return;
        into_.execute("INSERT INTO main.text(value) SELECT value FROM src.text WHERE true ON CONFLICT DO NOTHING;"
                      "INSERT INTO temp.text_number SELECT s.id, m.id FROM src.text s JOIN main.text m"
                      " ON m.value = s.value");
    }
    static std::string mapped(const char* column) {
        return fmt::format("(SELECT new FROM temp.text_number WHERE old = {})", column);
    }

    Connection& into_;
    std::set<std::string, std::less<>> tables_; // of the file
    std::int64_t spans_ = 0;                    // added to the numbers of its spans
};

} // namespace

void copyRuns(Connection& into, const std::string& path, const std::vector<RunCopy>& runs) {
    Statement attach(into, "ATTACH ? AS src");
    attach.bind(1, std::string_view(readOnlyUri(path)));
    try {
        attach.run();
        into.execute("BEGIN");
        {
            Copier copier(into);
            for (const RunCopy& run : runs) copier.copy(run);
        }
        into.execute("COMMIT; DETACH src");
    } catch (Error& error) {
        error.during("copying from " + path);
        throw;
    }
}

} // namespace kvscope
