#include "profiler/sql/sql_session.h"

#include "base/error.h"
#include "profiler/read/open_trace.h"
#include "profiler/sql/format_document.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <sqlite3.h>
#include <utility>

namespace kvscope {
namespace {

constexpr int kPollInterval = 1000;        // virtual machine instructions between two looks at the flag: about 50 us
constexpr int kLongestValue = 64 << 20;    // one value; group_concat over a big trace stays below it or is refused
constexpr std::size_t kRowsPerPart = 4096; // handed on at once
constexpr std::chrono::milliseconds kPartEvery{100};

/// PRAGMAs that only look. Without an argument: those that would change something with one.
constexpr std::array kLooking{"table_info",      "table_xinfo",   "table_list",       "index_list",
                              "index_info",      "index_xinfo",   "foreign_key_list", "database_list",
                              "collation_list",  "function_list", "module_list",      "pragma_list",
                              "compile_options", "quick_check",   "integrity_check"};
constexpr std::array kLookingWithoutArgument{"application_id", "user_version", "schema_version",
                                             "page_count",     "page_size",    "encoding",
                                             "freelist_count", "journal_mode", "data_version"};

template <std::size_t N> bool isOneOf(const std::array<const char*, N>& names, const char* name) {
    return name &&
           std::any_of(names.begin(), names.end(), [name](const char* n) { return sqlite3_stricmp(n, name) == 0; });
}

/// Null: allowed. Else what the statement wanted to do.
const char* refusalOf(int action, const char* first, const char* second) {
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE:
        return nullptr;
    case SQLITE_FUNCTION:
        return second && sqlite3_stricmp(second, "load_extension") == 0 ? "load an extension" : nullptr;
    case SQLITE_PRAGMA:
        if (isOneOf(kLooking, first) || (!second && isOneOf(kLookingWithoutArgument, first))) return nullptr;
        return "set a PRAGMA";
    case SQLITE_ATTACH:
    case SQLITE_DETACH:
        return "attach or detach a database";
    case SQLITE_INSERT:
        return "insert rows";
    case SQLITE_UPDATE:
        // Table-valued functions such as pragma_table_info appear as updates of sqlite_master. Allowing these is safe,
        // because on a defensive connection no statement can change the schema.
        return first && std::strcmp(first, "sqlite_master") == 0 ? nullptr : "change rows";
    case SQLITE_DELETE:
        return "delete rows";
    case SQLITE_TRANSACTION:
    case SQLITE_SAVEPOINT:
        return "begin or end a transaction";
    default:
        return "change the database";
    }
}

} // namespace

struct SqlSession::Impl {
    OpenTrace trace;
    std::string path;
    std::atomic<bool> stop{false};
    const char* refused = nullptr; // the kind of statement that is refused, set while a statement is prepared
    int offset = -1;
    std::function<void()> meanwhile; // on the thread of the query, while it looks for its next row

    sqlite3* handle() const { return trace.connection->handle(); }

    static int authorise(void* self, int action, const char* first, const char* second, const char*, const char*) {
        const char* refusal = refusalOf(action, first, second);
        if (refusal) static_cast<Impl*>(self)->refused = refusal;
        return refusal ? SQLITE_DENY : SQLITE_OK;
    }
    static int poll(void* context) {
        auto& self = *static_cast<Impl*>(context);
        if (self.meanwhile) self.meanwhile();
        return self.stop.load(std::memory_order_relaxed) ? 1 : 0;
    }

    [[noreturn]] void fail(int code) {
        const std::string message = sqlite3_errmsg(handle());
        offset = sqlite3_error_offset(handle());
        switch (code & 0xff) {
        case SQLITE_INTERRUPT:
            stop.store(false);
            throw Error(ErrorKind::Cancelled, "the query was stopped");
        case SQLITE_AUTH:
            throw Error(ErrorKind::BadInput,
                        fmt::format("this statement would {}, and a trace is only read here",
                                    refused ? refused : "change something"),
                        "use SELECT, WITH, VALUES, EXPLAIN or a PRAGMA that only looks");
        case SQLITE_NOMEM:
            throw Error(ErrorKind::OutOfMemory, "memory ran out during the query", "ask for fewer rows or columns");
        case SQLITE_TOOBIG:
            throw Error(ErrorKind::BadInput,
                        fmt::format("a value of the result is longer than {} MiB", kLongestValue >> 20),
                        "select less into one value");
        case SQLITE_ERROR:
        case SQLITE_RANGE:
        case SQLITE_MISMATCH:
            throw Error(ErrorKind::BadInput, message);
        default:
            trace.connection->fail(code, "reading");
        }
    }

    struct Finalize {
        void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
    };
    using Prepared = std::unique_ptr<sqlite3_stmt, Finalize>;

    Prepared prepare(std::string_view sql, const SqlParameters& parameters) {
        refused = nullptr;
        offset = -1;
        if (sql.size() > std::size_t(1) << 20)
            throw Error(ErrorKind::BadInput, "the statement is longer than 1 MiB", "shorten it");
        sqlite3_stmt* raw = nullptr;
        const char* tail = sql.data() + sql.size();
        const int code =
            sql.empty() ? SQLITE_OK : sqlite3_prepare_v2(handle(), sql.data(), int(sql.size()), &raw, &tail);
        Prepared statement(raw);
        if (code != SQLITE_OK) fail(code);
        if (!statement)
            throw Error(ErrorKind::BadInput, "there is no statement to run", "write one, such as SELECT * FROM v_step");
        if (statementAt({tail, std::size_t(sql.data() + sql.size() - tail)}, 0).second > 0) {
            offset = int(tail - sql.data());
            throw Error(ErrorKind::BadInput, "there is more than one statement", "run them one after the other");
        }
        // The authoriser has refused such statements already; this checks once more.
        if (!sqlite3_stmt_readonly(raw)) throw Error(ErrorKind::BadInput, "a trace is only read here");
        for (int i = 1; i <= sqlite3_bind_parameter_count(raw); ++i) {
            const char* name = sqlite3_bind_parameter_name(raw, i);
            const auto value = name ? parameters.find(std::string_view(name)) : parameters.end();
            if (value == parameters.end()) {
                std::string known;
                for (const auto& [each, ignored] : parameters) known += (known.empty() ? "" : ", ") + each;
                throw Error(ErrorKind::BadInput, fmt::format("the parameter {} has no value here", name ? name : "?"),
                            known.empty() ? "write the value itself" : "known are " + known);
            }
            sqlite3_bind_int64(raw, i, value->second);
        }
        return statement;
    }

    static std::vector<std::string> columnsOf(sqlite3_stmt* statement) {
        std::vector<std::string> names;
        for (int i = 0; i < sqlite3_column_count(statement); ++i) {
            const char* name = sqlite3_column_name(statement, i);
            names.emplace_back(name ? name : "");
        }
        return names;
    }

    static std::string_view bytesOf(sqlite3_stmt* statement, int column) {
        const void* bytes = sqlite3_column_type(statement, column) == SQLITE_TEXT
                                ? static_cast<const void*>(sqlite3_column_text(statement, column))
                                : sqlite3_column_blob(statement, column);
        return {static_cast<const char*>(bytes), bytes ? std::size_t(sqlite3_column_bytes(statement, column)) : 0};
    }
};

SqlSession::SqlSession(const std::string& path) : impl_(std::make_unique<Impl>()) {
    impl_->path = path;
    impl_->trace = openTrace(path);
    sqlite3* handle = impl_->handle();
    sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 1,
                      nullptr); // a person may want to read the file's own views, and can stop a query
    sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, kLongestValue);
    sqlite3_limit(handle, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_progress_handler(handle, kPollInterval, Impl::poll, impl_.get());
    sqlite3_set_authorizer(handle, Impl::authorise, impl_.get());
}

SqlSession::~SqlSession() = default;

void SqlSession::interrupt() {
    impl_->stop.store(true);
    sqlite3_interrupt(impl_->handle());
}

void SqlSession::rearm() { impl_->stop.store(false); }

int SqlSession::errorOffset() const { return impl_->offset; }

std::vector<SqlTableInfo> SqlSession::schema() {
    std::vector<SqlTableInfo> tables;
    const auto ask = [&](std::string_view sql, const std::function<void(const SqlRows&, std::size_t)>& use) {
        run(
            sql, {}, {}, [](const auto&) {},
            [&](std::shared_ptr<const SqlRows> rows) {
                for (std::size_t row = 0; row < rows->rows(); ++row) use(*rows, row);
            });
    };
    ask("SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE "
        "'\\'"
        " ORDER BY type DESC, rowid",
        [&](const SqlRows& rows, std::size_t row) {
            SqlTableInfo& table = tables.emplace_back();
            table.name = rows.text(row, 0);
            table.view = rows.text(row, 1) == "view";
            table.help = tableHelp(table.name);
        });
    for (SqlTableInfo& table : tables) {
        std::string quoted = "'";
        for (const char c : table.name) quoted += c == '\'' ? std::string("''") : std::string(1, c);
        quoted += '\'';
        ask("SELECT name, lower(type) FROM pragma_table_info(" + quoted + ")",
            [&](const SqlRows& rows, std::size_t row) {
                SqlColumnInfo column{std::string(rows.text(row, 0)), std::string(rows.text(row, 1)), {}};
                const ColumnHelp help = columnHelp(table.name, column.name);
                if (column.type.empty()) column.type = help.type; // computed columns of views have no declared type
                column.help = help.meaning;
                table.columns.push_back(std::move(column));
            });
    }
    return tables;
}

SqlOutcome SqlSession::run(std::string_view sql, const SqlParameters& parameters, const SqlLimits& limits,
                           const std::function<void(const std::vector<std::string>&)>& header,
                           const std::function<void(std::shared_ptr<const SqlRows>)>& rows) {
    const auto statement = impl_->prepare(sql, parameters);
    const auto names = Impl::columnsOf(statement.get());
    header(names);
    const int columns = int(names.size());
    SqlOutcome outcome;
    std::size_t bytes = 0;
    auto part = std::make_shared<SqlRows>(std::max(columns, 1));
    auto handedOn = std::chrono::steady_clock::now();
    const auto handOn = [&] {
        bytes += part->bytes();
        rows(std::exchange(part, std::make_shared<SqlRows>(std::max(columns, 1))));
        handedOn = std::chrono::steady_clock::now();
    };
    // Rows that came are shown while a slow query looks for the next. Only between rows: a part holds whole ones.
    impl_->meanwhile = [&] {
        if (part->rows() > 0 && std::chrono::steady_clock::now() - handedOn >= kPartEvery) handOn();
    };
    const std::unique_ptr<Impl, void (*)(Impl*)> forget(impl_.get(), [](Impl* impl) { impl->meanwhile = nullptr; });
    for (;;) {
        const int code = sqlite3_step(statement.get());
        if (code == SQLITE_DONE) break;
        if (code != SQLITE_ROW) {
            if (part->rows() > 0) handOn(); // rows from before it was stopped
            impl_->fail(code);
        }
        if (columns == 0) continue;
        if (outcome.rows >= limits.rows || bytes + part->bytes() >= limits.bytes) {
            outcome.truncated = true;
            break;
        }
        for (int i = 0; i < columns; ++i) {
            switch (sqlite3_column_type(statement.get(), i)) {
            case SQLITE_INTEGER:
                part->addInteger(sqlite3_column_int64(statement.get(), i));
                break;
            case SQLITE_FLOAT:
                part->addReal(sqlite3_column_double(statement.get(), i));
                break;
            case SQLITE_TEXT:
                part->addBytes(SqlType::Text, Impl::bytesOf(statement.get(), i));
                break;
            case SQLITE_BLOB:
                part->addBytes(SqlType::Blob, Impl::bytesOf(statement.get(), i));
                break;
            default:
                part->addNull();
            }
        }
        ++outcome.rows;
        if (part->rows() >= kRowsPerPart || std::chrono::steady_clock::now() - handedOn >= kPartEvery) handOn();
    }
    if (part->rows() > 0) handOn();
    return outcome;
}

std::size_t SqlSession::writeCsv(std::string_view sql, const SqlParameters& parameters,
                                 const std::function<void(std::string_view)>& write,
                                 const std::function<void(std::size_t)>& progress) {
    const auto statement = impl_->prepare(sql, parameters);
    std::string out;
    const auto names = Impl::columnsOf(statement.get());
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (i > 0) out += ',';
        out += csvField(names[i]);
    }
    out += '\n';
    std::size_t count = 0;
    for (;;) {
        const int code = sqlite3_step(statement.get());
        if (code == SQLITE_DONE) break;
        if (code != SQLITE_ROW) impl_->fail(code);
        for (int i = 0; i < int(names.size()); ++i) {
            constexpr SqlType kTypes[] = {SqlType::Null, SqlType::Integer, SqlType::Real,
                                          SqlType::Text, SqlType::Blob,    SqlType::Null};
            const int type = sqlite3_column_type(statement.get(), i);
            const SqlType kind = kTypes[type == SQLITE_NULL ? 5 : type];
            const bool bytes = kind == SqlType::Text || kind == SqlType::Blob;
            if (i > 0) out += ',';
            out += csvField(sqlText(kind, kind == SqlType::Integer ? sqlite3_column_int64(statement.get(), i) : 0,
                                    kind == SqlType::Real ? sqlite3_column_double(statement.get(), i) : 0,
                                    bytes ? Impl::bytesOf(statement.get(), i) : std::string_view()));
        }
        out += '\n';
        ++count;
        if (out.size() >= std::size_t(1) << 16) {
            write(out);
            out.clear();
            if (progress) progress(count);
        }
    }
    write(out);
    if (progress) progress(count);
    return count;
}

std::pair<std::size_t, std::size_t> statementAt(std::string_view text, std::size_t position) {
    std::pair<std::size_t, std::size_t> best{0, 0};
    std::size_t begin = 0, i = 0;
    bool content = false; // something else than white space and comments
    std::size_t contentBegin = 0, contentEnd = 0;
    const auto close = [&](std::size_t end) {
        if (content && (best.second == 0 || begin <= position)) best = {contentBegin, contentEnd - contentBegin};
        begin = end;
        content = false;
    };
    while (i < text.size()) {
        const char c = text[i];
        std::size_t end = i + 1;
        if (c == ';') {
            close(i + 1);
            ++i;
            if (position < i) return best;
            continue;
        }
        if (text.substr(i, 2) == "--") {
            end = std::min(text.find('\n', i), text.size());
        } else if (text.substr(i, 2) == "/*") {
            const auto found = text.find("*/", i + 2);
            end = found == std::string_view::npos ? text.size() : found + 2;
        } else {
            if (c == '\'' || c == '"' || c == '`' || c == '[') {
                const auto found = text.find(c == '[' ? ']' : c, i + 1);
                end = found == std::string_view::npos ? text.size() : found + 1; // '' reads as two strings: the same
            }
            if (std::memchr(" \t\r\n\f", c, 5) == nullptr) {
                if (!content) contentBegin = i;
                content = true;
                contentEnd = end;
            }
        }
        i = end;
    }
    close(text.size());
    return best;
}

std::string csvField(std::string_view text) {
    if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + '"';
}

} // namespace kvscope
